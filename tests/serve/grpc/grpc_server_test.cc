// The server, as clients of the library see it.
#include <grpcpp/generic/generic_stub.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/serve/grpc/message_coding.hpp"
#include "engine/serve/http/gzip.hpp"
#include "engine/serve/http/socket_address.hpp"
#include "engine/serve/service_metadata.hpp"
#include "tests/serve/certificates.hpp"
#include "tests/serve/client.hpp"
#include "tests/serve/grpc/client.hpp"
#include "tests/serve/http_peer.hpp"

using namespace flow;

namespace {

template <typename Request, typename Response>
grpc::Status call(Stub& stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response& response, const std::string& key = "") {
  grpc::ClientContext context;
  if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
  return (stub.*method)(&context, request, &response);
}

/// A call that sends its metadata and no message, and waits for its end.
struct SilentCall final : grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
  void OnDone(const grpc::Status& status) override { ended.set_value(status); }
  std::promise<grpc::Status> ended;
};

struct GrpcPems {
  explicit GrpcPems(const Identity& identity) {
    REQUIRE(folder.ok());
    files = {**folder + "/server.pem", **folder + "/server.key"};
    write(identity);
  }
  void write(const Identity& identity) const {
    REQUIRE(write_file_atomic(files.certificate, certificate_pem(identity)).ok());
    REQUIRE(write_file_atomic(files.key, key_pem(identity)).ok());
  }

  Result<std::shared_ptr<const std::string>> folder = make_temporary_folder();
  TlsFiles files;
};

std::shared_ptr<grpc::ChannelCredentials> trusting(const std::string& roots,
                                                   const Identity* client = nullptr) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = roots;
  if (client != nullptr) {
    options.pem_cert_chain = certificate_pem(*client);
    options.pem_private_key = key_pem(*client);
  }
  return grpc::SslCredentials(options);
}

}  // namespace

TEST_CASE("the server describes itself and its model") {
  GrpcService service;
  Stub& stub = *service.stub;

  inference::ServerLiveResponse live;
  REQUIRE(call(stub, &Stub::ServerLive, {}, live).ok());
  CHECK(live.live());
  inference::ServerReadyResponse ready;
  REQUIRE(call(stub, &Stub::ServerReady, {}, ready).ok());
  CHECK(ready.ready());
  inference::ModelReadyRequest model;
  model.set_name("adder");
  inference::ModelReadyResponse model_ready;
  REQUIRE(call(stub, &Stub::ModelReady, model, model_ready).ok());
  CHECK(model_ready.ready());
  for (const auto& [name, version] :
       {std::pair("absent", ""), std::pair("adder", "2"), std::pair("", "")}) {
    model.set_name(name);
    model.set_version(version);
    REQUIRE(call(stub, &Stub::ModelReady, model, model_ready).ok());
    CHECK_FALSE(model_ready.ready());
  }

  inference::RepositoryModelLoadRequest loaded;
  loaded.set_model_name("adder");
  inference::RepositoryModelLoadResponse no_load;
  grpc::Status status = call(stub, &Stub::RepositoryModelLoad, loaded, no_load);
  CHECK(status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(status.error_message() == kNoModelLoad);
  inference::RepositoryModelUnloadRequest unloaded;
  unloaded.set_model_name("absent");
  inference::RepositoryModelUnloadResponse no_unload;
  status = call(stub, &Stub::RepositoryModelUnload, unloaded, no_unload);
  CHECK(status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(status.error_message() == "there is no model `absent` here, only `adder`");

  inference::ServerMetadataResponse server;
  REQUIRE(call(stub, &Stub::ServerMetadata, {}, server).ok());
  CHECK(server.ShortDebugString() == R"(name: "flow" version: "1" extensions: "statistics")");
  inference::ModelMetadataRequest metadata;
  metadata.set_name("adder");
  inference::ModelMetadataResponse described;
  REQUIRE(call(stub, &Stub::ModelMetadata, metadata, described).ok());
  CHECK(described.ShortDebugString() ==
        R"(name: "adder" versions: "1" platform: "flow_lua" )"
        R"(inputs { name: "x" datatype: "FP32" shape: -1 shape: 2 })");
  metadata.set_version("2");
  status = call(stub, &Stub::ModelMetadata, metadata, described);
  CHECK(status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(status.error_message() == "`adder` has no version `2`, only `1`");
  inference::ModelConfigRequest configured;
  configured.set_name("adder");
  inference::ModelConfigResponse configuration;
  REQUIRE(call(stub, &Stub::ModelConfig, configured, configuration).ok());
  CHECK(configuration.ShortDebugString() ==
        R"(config { name: "adder" platform: "flow_lua" max_batch_size: 8 )"
        R"(input { name: "x" data_type: TYPE_FP32 dims: 2 } )"
        R"(dynamic_batching { max_queue_delay_microseconds: 5 } backend: "flow" })");
  configured.set_name("absent");
  CHECK(call(stub, &Stub::ModelConfig, configured, configuration).error_code() ==
        grpc::StatusCode::NOT_FOUND);
  inference::ModelStatisticsResponse statistics;
  REQUIRE(call(stub, &Stub::ModelStatistics, {}, statistics).ok());
  REQUIRE(statistics.model_stats_size() == 1);
  CHECK(statistics.model_stats(0).ShortDebugString() ==
        R"(name: "adder" version: "1" last_inference: 9 inference_count: 3 execution_count: 2 )"
        R"(inference_stats { success { count: 1 ns: 1000 } fail { } )"
        R"(compute_infer { count: 2 ns: 500 } })");
  inference::RepositoryIndexRequest ready_only;
  ready_only.set_ready(true);
  inference::RepositoryIndexResponse index;
  REQUIRE(call(stub, &Stub::RepositoryIndex, ready_only, index).ok());
  CHECK(index.ShortDebugString() == R"(models { name: "adder" version: "1" state: "READY" })");

  service.backend->set_ready(false);
  REQUIRE(call(stub, &Stub::ServerReady, {}, ready).ok());
  CHECK_FALSE(ready.ready());
  REQUIRE(call(stub, &Stub::RepositoryIndex, ready_only, index).ok());
  CHECK(index.models_size() == 0);
  REQUIRE(call(stub, &Stub::RepositoryIndex, {}, index).ok());
  CHECK(index.ShortDebugString() ==
        R"(models { name: "adder" version: "1" state: "UNAVAILABLE" })");
}

TEST_CASE("a request is answered with its id and raw contents") {
  GrpcService service;
  auto request = infer_request("x", {1, 2});
  request.set_id("7");
  InferReply reply = infer(*service.stub, request);
  REQUIRE(reply.status.ok());
  CHECK(reply.response.model_name() == "adder");
  CHECK(reply.response.id() == "7");
  REQUIRE(reply.response.outputs_size() == 1);
  CHECK(reply.response.outputs(0).ShortDebugString() ==
        R"(name: "x" datatype: "FP32" shape: 1 shape: 2)");
  CHECK(floats(reply.response.raw_output_contents(0)) == std::vector<float>{2, 3});
}

TEST_CASE("a request of many megabytes is answered whole") {
  GrpcService service;
  constexpr size_t kBytes = 48u << 20;
  auto request = infer_request("x", {});
  request.mutable_inputs(0)->set_datatype("UINT8");
  request.mutable_inputs(0)->set_shape(1, kBytes);
  std::string bytes(kBytes, '\0');
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<char>(i * 31 >> 3);
  request.set_raw_input_contents(0, bytes);
  InferReply reply = infer(*service.stub, request);
  REQUIRE(reply.status.ok());
  CHECK(reply.response.raw_output_contents(0) == bytes);
}

TEST_CASE("a message over the limit is refused") {
  GrpcService service({.name = "adder", .message_max = 1000});
  auto request = infer_request("x", {1});
  request.set_raw_input_contents(0, std::string(2000, 'x'));
  CHECK(infer(*service.stub, request).status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(infer(*service.stub, infer_request("x", {1})).status.ok());
}

TEST_CASE("errors of requests have the codes of gRPC") {
  GrpcService service;
  auto check = [&](const inference::ModelInferRequest& request, grpc::StatusCode code,
                   const std::string& message) {
    InferReply reply = infer(*service.stub, request);
    CHECK(reply.status.error_code() == code);
    CHECK(reply.status.error_message() == message);
  };
  check({}, grpc::StatusCode::NOT_FOUND, "there is no model `` here, only `adder`");
  auto request = infer_request("x", {1});
  request.set_model_version("3");
  check(request, grpc::StatusCode::NOT_FOUND, "`adder` has no version `3`, only `1`");
  request.clear_model_version();
  request.clear_inputs();
  check(request, grpc::StatusCode::INVALID_ARGUMENT, "the request has no `inputs`");
  CHECK(service.backend->refused() == std::vector<int>{404, 404, 400});
  CHECK(service.backend->arrived() == 0);
  check(infer_request("wrong", {1}), grpc::StatusCode::INVALID_ARGUMENT, "wrong is not an input");
  check(infer_request("boom", {1}), grpc::StatusCode::INTERNAL, "boom: predict failed");
  check(infer_request("drop", {1}), grpc::StatusCode::INTERNAL, "the service dropped the request");
  request = infer_request("x", {1});
  request.add_outputs()->set_name("y");
  check(request, grpc::StatusCode::INVALID_ARGUMENT, "the model has no output `y`: it has `x`");

  std::map<int, grpc::StatusCode> codes = {
      {429, grpc::StatusCode::RESOURCE_EXHAUSTED}, {502, grpc::StatusCode::UNAVAILABLE},
      {503, grpc::StatusCode::UNAVAILABLE},        {504, grpc::StatusCode::DEADLINE_EXCEEDED},
      {499, grpc::StatusCode::CANCELLED},          {500, grpc::StatusCode::INTERNAL}};
  service.backend->hold();
  for (auto [status, code] : codes) {
    size_t before = service.backend->arrived();
    auto reply = std::async(std::launch::async,
                            [&] { return infer(*service.stub, infer_request("x", {1})); });
    service.backend->wait_arrived(before + 1);
    service.backend->fail_all(status, "so be it\xff");
    grpc::Status got = reply.get().status;
    CHECK(got.error_code() == code);
    CHECK(got.error_message() == "so be it\xef\xbf\xbd");
  }
}

TEST_CASE("bytes that are no message are an invalid argument") {
  GrpcService service;
  grpc::GenericStub stub(channel_to(service.server->port()));
  grpc::Slice slice(std::string("\xff\xff\xff"));
  grpc::ByteBuffer request(&slice, 1), response;
  grpc::ClientContext context;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, "/inference.GRPCInferenceService/ModelInfer", {}, &request, &response,
                 [&](grpc::Status status) { ended.set_value(std::move(status)); });
  CHECK(ended.get_future().get().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("the client's deadline becomes the request's, and its passing ends the work") {
  GrpcService service;
  service.backend->hold();
  grpc::ClientContext context;
  auto before = InferenceBackend::Clock::now();
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  inference::ModelInferResponse response;
  auto request = infer_request("x", {1});
  auto ended = std::async(std::launch::async,
                          [&] { return service.stub->ModelInfer(&context, request, &response); });
  service.backend->wait_arrived(1);
  auto deadline = service.backend->first_deadline();
  REQUIRE(deadline);
  CHECK(*deadline > before);
  CHECK(*deadline < before + std::chrono::seconds(60));
  CHECK(ended.get().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  service.backend->wait_first_abandoned();
  service.backend->release();  // a late answer has no effect
  CHECK(infer(*service.stub, infer_request("x", {1})).status.ok());
}

TEST_CASE("a request without a deadline has none") {
  GrpcService service;
  service.backend->hold();
  auto ended =
      std::async(std::launch::async, [&] { return infer(*service.stub, infer_request("x", {1})); });
  service.backend->wait_arrived(1);
  CHECK_FALSE(service.backend->first_deadline());
  service.backend->release();
  CHECK(ended.get().status.ok());
}

TEST_CASE("a cancelled request is abandoned") {
  GrpcService service;
  service.backend->hold();
  grpc::ClientContext context;
  inference::ModelInferResponse response;
  auto request = infer_request("x", {1});
  auto ended = std::async(std::launch::async,
                          [&] { return service.stub->ModelInfer(&context, request, &response); });
  service.backend->wait_arrived(1);
  context.TryCancel();
  CHECK(ended.get().error_code() == grpc::StatusCode::CANCELLED);
  service.backend->wait_first_abandoned();
}

TEST_CASE("all but health needs a key") {
  GrpcService service({.name = "adder"}, {"secret", "second"});
  Stub& stub = *service.stub;
  auto request = infer_request("x", {1});
  for (const char* wrong : {"", "Bearer nothing", "secret", "Basic secret"}) {
    grpc::Status status = infer(stub, request, wrong).status;
    CHECK(status.error_code() == grpc::StatusCode::UNAUTHENTICATED);
    CHECK(status.error_message() ==
          "this service needs a key: send the metadata `authorization: Bearer KEY`");
  }
  CHECK(service.backend->arrived() == 0);
  CHECK(service.backend->refused() == std::vector<int>{401, 401, 401, 401});
  CHECK(infer(stub, request, "Bearer secret").status.ok());
  CHECK(infer(stub, request, "bearer second").status.ok());

  auto denied = [](const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
  };
  inference::ServerMetadataResponse server;
  CHECK(denied(call(stub, &Stub::ServerMetadata, {}, server)));
  CHECK(call(stub, &Stub::ServerMetadata, {}, server, "secret").ok());
  // Without a key not even the model's name can be asked for.
  inference::ModelMetadataRequest absent;
  absent.set_name("absent");
  inference::ModelMetadataResponse metadata;
  CHECK(denied(call(stub, &Stub::ModelMetadata, absent, metadata)));
  inference::ModelConfigResponse configuration;
  CHECK(denied(call(stub, &Stub::ModelConfig, {}, configuration)));
  inference::ModelStatisticsResponse statistics;
  CHECK(denied(call(stub, &Stub::ModelStatistics, {}, statistics)));
  inference::RepositoryIndexResponse index;
  CHECK(denied(call(stub, &Stub::RepositoryIndex, {}, index)));
  inference::RepositoryModelLoadResponse loaded;
  CHECK(denied(call(stub, &Stub::RepositoryModelLoad, {}, loaded)));
  inference::ServerLiveResponse live;
  CHECK(call(stub, &Stub::ServerLive, {}, live).ok());
  inference::ServerReadyResponse ready;
  CHECK(call(stub, &Stub::ServerReady, {}, ready).ok());
  grpc::ClientContext twice;
  twice.AddMetadata("authorization", "Bearer secret");
  twice.AddMetadata("authorization", "Bearer nothing");
  inference::ModelInferResponse response;
  CHECK(denied(stub.ModelInfer(&twice, request, &response)));
}

TEST_CASE("a call without a key is refused before its message arrives") {
  GrpcService service({.name = "adder"}, {"secret"});
  grpc::GenericStub stub(channel_to(service.server->port()));
  for (const char* method :
       {"ModelInfer", "ModelStreamInfer", "ServerMetadata", "ModelMetadata", "ModelConfig",
        "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"}) {
    INFO(method);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    SilentCall call;
    stub.PrepareBidiStreamingCall(
        &context, std::string("/inference.GRPCInferenceService/") + method, {}, &call);
    call.StartCall();
    CHECK(call.ended.get_future().get().error_code() == grpc::StatusCode::UNAUTHENTICATED);
  }
  CHECK(service.backend->refused() == std::vector<int>{401});
  std::vector<RequestRecord> noted = service.backend->noted();
  REQUIRE(noted.size() == 8);
  for (const RequestRecord& each : noted) CHECK(each.status == 401);
}

TEST_CASE("a call that ends without its message is an invalid argument") {
  GrpcService service;
  grpc::GenericStub stub(channel_to(service.server->port()));
  for (const char* method : {"ModelInfer", "ModelMetadata"}) {
    grpc::ClientContext context;
    SilentCall call;
    stub.PrepareBidiStreamingCall(
        &context, std::string("/inference.GRPCInferenceService/") + method, {}, &call);
    call.StartWritesDone();
    call.StartCall();
    grpc::Status status = call.ended.get_future().get();
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(status.error_message() == "the call ends without a message");
  }
  CHECK(service.backend->arrived() == 0);
}

TEST_CASE("a call whose message does not arrive is cancelled") {
  GrpcService service({.name = "adder", .describe_ms = 50, .message_ms = 50}, {"secret"});
  grpc::GenericStub stub(channel_to(service.server->port()));
  for (const char* method :
       {"ServerLive", "ServerReady", "ModelReady", "ModelMetadata", "ModelInfer"}) {
    INFO(method);
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer secret");
    SilentCall call;
    stub.PrepareBidiStreamingCall(
        &context, std::string("/inference.GRPCInferenceService/") + method, {}, &call);
    call.StartCall();
    CHECK(call.ended.get_future().get().error_code() == grpc::StatusCode::CANCELLED);
  }
  // An answer may take longer.
  service.backend->hold();
  auto open = std::async(std::launch::async, [&] {
    return infer(*service.stub, infer_request("x", {1}), "Bearer secret");
  });
  service.backend->wait_arrived(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  service.backend->release();
  CHECK(open.get().status.ok());
}

TEST_CASE("a compressed request is answered, up to the limit of plain ones") {
  GrpcService service({.name = "adder", .message_max = 1u << 20});
  auto request = infer_request("x", {});
  request.mutable_inputs(0)->set_datatype("UINT8");
  auto send = [&](grpc_compression_algorithm algorithm, size_t bytes) {
    request.mutable_inputs(0)->set_shape(1, static_cast<int64_t>(bytes));
    request.set_raw_input_contents(0, std::string(bytes, 'x'));
    InferReply reply;
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    reply.status = service.stub->ModelInfer(&context, request, &reply.response);
    return reply;
  };
  for (auto [algorithm, name] :
       {std::pair(GRPC_COMPRESS_GZIP, "gzip"), std::pair(GRPC_COMPRESS_DEFLATE, "deflate")}) {
    InferReply reply = send(algorithm, 1'000'000);
    CHECK(reply.status.error_message() == "");
    REQUIRE(reply.response.raw_output_contents_size() == 1);
    CHECK(reply.response.raw_output_contents(0) == request.raw_input_contents(0));
    size_t before = service.backend->arrived();
    reply = send(algorithm, 8u << 20);
    CHECK(reply.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
    CHECK(reply.status.error_message() ==
          "the message is larger than 1048576 bytes after its grpc-encoding `" + std::string(name) +
              "` is undone");
    CHECK(service.backend->arrived() == before);
  }
  CHECK(service.backend->refused() == std::vector<int>{413, 413});
}

TEST_CASE("a compressed message that is damaged is an invalid argument") {
  GrpcService service;
  grpc::GenericStub stub(channel_to(service.server->port()));
  std::string packed = gzip(infer_request("x", {1}).SerializeAsString());
  auto send = [&](std::string_view bytes) {
    grpc::Slice slice(bytes.data(), bytes.size());
    grpc::ByteBuffer request(&slice, 1), response;
    compression_of(request) = GRPC_COMPRESS_GZIP;
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    std::promise<grpc::Status> ended;
    stub.UnaryCall(&context, "/inference.GRPCInferenceService/ModelInfer", {}, &request, &response,
                   [&](grpc::Status status) { ended.set_value(std::move(status)); });
    return ended.get_future().get();
  };
  CHECK(send(packed).ok());
  for (const std::string& damaged :
       {packed.substr(0, packed.size() / 2), packed + "x", std::string("no gzip"), std::string()}) {
    grpc::Status status = send(damaged);
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(status.error_message() ==
          "the message is damaged: its grpc-encoding `gzip` cannot be undone");
  }
}

TEST_CASE("a compressed message of a call other than inference is read, up to 64 KiB") {
  GrpcService service;
  auto metadata_of = [&](const std::string& model) {
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    inference::ModelMetadataRequest request;
    request.set_name(model);
    inference::ModelMetadataResponse response;
    return service.stub->ModelMetadata(&context, request, &response);
  };
  grpc::Status status = metadata_of(std::string(10'000, 'x'));
  CHECK(status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK_THAT(status.error_message(), Catch::Contains("there is no model `xxx"));
  status = metadata_of(std::string(100'000, 'x'));
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(status.error_message(), Catch::Contains("larger than 65536 bytes"));

  grpc::GenericStub generic(channel_to(service.server->port()));
  auto call_with = [&](const std::string& bytes, grpc_compression_algorithm algorithm) {
    grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1), response;
    compression_of(request) = algorithm;
    grpc::ClientContext context;
    std::promise<grpc::Status> done;
    generic.UnaryCall(&context, "/inference.GRPCInferenceService/ModelReady", {}, &request,
                      &response, [&](grpc::Status ended) { done.set_value(std::move(ended)); });
    return done.get_future().get();
  };
  CHECK(call_with("\xff", GRPC_COMPRESS_NONE).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(call_with("no gzip", GRPC_COMPRESS_GZIP).error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  std::vector<int> statuses;
  for (const RequestRecord& record : service.backend->noted()) statuses.push_back(record.status);
  CHECK(statuses == std::vector<int>{404, 413, 400, 400});
}

TEST_CASE("a port in use and an address of another machine are errors that say what to do") {
  GrpcService service;
  GrpcOptions options{.name = "adder", .port = service.server->port()};
  auto second = GrpcServer::open(options, *service.backend);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().kind == ErrorKind::user);
  CHECK(second.error().message ==
        "the service `adder` cannot listen on port " + std::to_string(options.port) +
            " of 127.0.0.1: the port is in use. End the program that listens there, choose "
            "another port, or write `grpc = 0` for a free one");
  options.address = "192.0.2.1";
  second = GrpcServer::open(options, *service.backend);
  REQUIRE_FALSE(second.ok());
  CHECK_THAT(second.error().message, Catch::Contains("the machine does not have that address"));
}

TEST_CASE("a connection above the maximum is closed, and its place is free when another ends") {
  GrpcService service({.name = "adder", .connections_max = 2});
  REQUIRE(infer(*service.stub, infer_request("x", {1})).status.ok());
  auto second = std::make_unique<Stub>(channel_to(service.server->port()));
  REQUIRE(infer(*second, infer_request("x", {1})).status.ok());
  HttpPeer third(connect_to(service.server->port()));
  CHECK(third.rest().empty());
  Stub waiting(channel_to(service.server->port()));
  CHECK(infer(waiting, infer_request("x", {1})).status.error_code() ==
        grpc::StatusCode::UNAVAILABLE);
  second.reset();
  while (!infer(waiting, infer_request("x", {1})).status.ok()) std::this_thread::yield();
}

TEST_CASE("a connection without a valid key gives its place to a new one") {
  const std::string address = GENERATE("127.0.0.1", "::1");
  if (listening_problem({address, 0}) != 0) return;
  GrpcService service(
      {.name = "adder", .address = address, .connections_max = 2, .evict_after_ms = 0}, {"secret"});
  const std::string target = address_text({address, service.server->port()});
  auto connected = [&] {
    auto to = socket_address(address, service.server->port());
    int socket = ::socket(to->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(::connect(socket, reinterpret_cast<sockaddr*>(&to->storage), to->size) == 0);
    return HttpPeer(socket);
  };
  auto ends = [](HttpPeer& peer) {
    peer.rest();
    return true;
  };
  HttpPeer first = connected(), second = connected();
  auto channel = channel_to(target);
  Stub stub(channel);
  inference::ServerLiveResponse live;
  REQUIRE(call(stub, &Stub::ServerLive, {}, live).ok());
  CHECK(ends(first));
  // Without a key it would be the next but one.
  REQUIRE(infer(stub, infer_request("x", {1}), "Bearer secret").status.ok());
  HttpPeer third = connected();
  CHECK(ends(second));
  HttpPeer fourth = connected();
  CHECK(ends(third));
  CHECK(channel->GetState(false) == GRPC_CHANNEL_READY);
  Stub other(channel_to(target));
  REQUIRE(infer(other, infer_request("x", {1}), "Bearer secret").status.ok());
  CHECK(ends(fourth));
  // Now all have sent a key.
  HttpPeer fifth = connected();
  CHECK(ends(fifth));
  CHECK(infer(stub, infer_request("x", {1}), "Bearer secret").status.ok());
  CHECK(infer(other, infer_request("x", {1}), "Bearer secret").status.ok());
}

TEST_CASE("a connection that is too young to have sent its key keeps its place") {
  GrpcService service({.name = "adder", .connections_max = 1, .evict_after_ms = 3'600'000},
                      {"secret"});
  HttpPeer first(connect_to(service.server->port()));
  HttpPeer second(connect_to(service.server->port()));
  CHECK(second.rest().empty());
  first.close();
  while (!infer(*service.stub, infer_request("x", {1}), "Bearer secret").status.ok())
    std::this_thread::yield();
}

TEST_CASE("a server without file descriptors accepts again when there are some") {
  GrpcService service;
  HttpPeer client(connect_to(service.server->port()));
  int left = ::dup(STDIN_FILENO);
  REQUIRE(left >= 0);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  int waiting = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(waiting >= 0);
  // All numbers below the limit are in use.
  std::vector<int> taken;
  rlimit few{static_cast<rlim_t>(waiting) + 1, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  for (int fd = 0; (fd = ::dup(STDIN_FILENO)) >= 0;) taken.push_back(fd);
  auto address = socket_address("127.0.0.1", service.server->port());
  REQUIRE(::connect(waiting, reinterpret_cast<sockaddr*>(&address->storage), address->size) == 0);
  for (int fd : taken) ::close(fd);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  ::close(waiting);
  ::close(left);
  CHECK(infer(*service.stub, infer_request("x", {1})).status.ok());
}

TEST_CASE("a drain answers the open requests, takes no others, and is then done") {
  GrpcService service;
  auto channel = channel_to(service.server->port());
  Stub stub(channel);
  service.backend->hold();
  auto open = std::async(std::launch::async, [&] { return infer(stub, infer_request("x", {1})); });
  service.backend->wait_arrived(1);
  CHECK_FALSE(service.server->wait_drained(0));
  service.server->begin_drain(600'000);
  for (int connected; (connected = connect_to(service.server->port())) >= 0;) ::close(connected);
  wait_for_goaway(*channel);
  InferReply late = infer(stub, infer_request("x", {1}));
  CHECK_FALSE(late.status.ok());
  CHECK(service.backend->arrived() == 1);
  CHECK_FALSE(service.server->wait_drained(0));
  service.backend->release();
  CHECK(open.get().status.ok());
  CHECK(service.server->wait_drained(600'000));
}

TEST_CASE("the end of a drain's time and of a server cancel what is open") {
  GrpcService service;
  service.backend->hold();
  auto open =
      std::async(std::launch::async, [&] { return infer(*service.stub, infer_request("x", {1})); });
  service.backend->wait_arrived(1);
  SECTION("the drain's time passes") {
    service.server->begin_drain(1);
    CHECK(service.server->wait_drained(600'000));
  }
  SECTION("the server ends") { service.server.reset(); }
  CHECK_FALSE(open.get().status.ok());
  service.backend->wait_first_abandoned();
}

TEST_CASE("a server with certificates speaks TLS only") {
  Identity authority = new_identity({.name = "authority", .is_authority = true});
  Identity identity = new_identity({.name = "localhost", .issuer = &authority});
  GrpcPems pems(identity);
  GrpcService service({.name = "adder", .tls = pems.files});
  int port = service.server->port();

  Stub trusted(channel_to(port, trusting(certificate_pem(authority))));
  CHECK(infer(trusted, infer_request("x", {1})).status.ok());
  Identity other = new_identity({.name = "other", .is_authority = true});
  Stub doubting(channel_to(port, trusting(certificate_pem(other))));
  CHECK(infer(doubting, infer_request("x", {1})).status.error_code() ==
        grpc::StatusCode::UNAVAILABLE);
  Stub plain(channel_to(port));
  CHECK(infer(plain, infer_request("x", {1})).status.error_code() == grpc::StatusCode::UNAVAILABLE);

  // A new certificate is used without a restart.
  Identity next = new_identity({.name = "localhost", .issuer = &other});
  pems.write(next);
  while (true) {
    Stub renewed(channel_to(port, trusting(certificate_pem(other))));
    if (infer(renewed, infer_request("x", {1})).status.ok()) break;
  }
}

TEST_CASE("a server with authorities for clients needs a certificate of them") {
  Identity authority = new_identity({.name = "authority", .is_authority = true});
  Identity identity = new_identity({.name = "localhost", .issuer = &authority});
  Identity client = new_identity({.name = "client", .issuer = &authority});
  GrpcPems pems(identity);
  TlsFiles files = pems.files;
  files.clients = **pems.folder + "/clients.pem";
  REQUIRE(write_file_atomic(files.clients, certificate_pem(authority)).ok());
  GrpcService service({.name = "adder", .tls = files});
  int port = service.server->port();
  Stub known(channel_to(port, trusting(certificate_pem(authority), &client)));
  CHECK(infer(known, infer_request("x", {1})).status.ok());
  Stub unknown(channel_to(port, trusting(certificate_pem(authority))));
  CHECK(infer(unknown, infer_request("x", {1})).status.error_code() ==
        grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("files of TLS that cannot be used are errors of open") {
  FakeBackend backend;
  auto opened =
      GrpcServer::open({.name = "adder", .tls = TlsFiles{"/absent.pem", "/absent.key"}}, backend);
  REQUIRE_FALSE(opened.ok());
  CHECK_THAT(opened.error().message, Catch::Contains("/absent.pem"));
}

TEST_CASE("many clients at a time are all answered") {
  GrpcService service;
  constexpr int kThreads = 8, kRequests = 200;
  std::vector<std::future<int>> clients;
  for (int i = 0; i < kThreads; i++)
    clients.push_back(std::async(std::launch::async, [&, i] {
      Stub stub(channel_to(service.server->port()));
      int right = 0;
      for (int n = 0; n < kRequests; n++) {
        auto value = static_cast<float>(i * kRequests + n);
        InferReply reply = infer(stub, infer_request("x", {value}));
        right += reply.status.ok() &&
                 floats(reply.response.raw_output_contents(0)) == std::vector<float>{value + 1};
      }
      return right;
    }));
  for (auto& client : clients) CHECK(client.get() == kRequests);
}
