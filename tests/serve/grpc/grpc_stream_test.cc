// Streams of requests.
#include <future>
#include <map>

#include "engine/serve/grpc/infer_stream.hpp"
#include "tests/serve/grpc/client.hpp"

using namespace flow;

namespace {

/// A stream with a client that writes and reads on one thread.
struct OpenStream {
  explicit OpenStream(Stub& stub, const std::string& authorization = "",
                      grpc_compression_algorithm algorithm = GRPC_COMPRESS_NONE) {
    context.set_compression_algorithm(algorithm);
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    calls = stub.ModelStreamInfer(&context);
  }
  void send(const std::string& id, inference::ModelInferRequest request) const {
    request.set_id(id);
    REQUIRE(calls->Write(request));
  }
  inference::ModelStreamInferResponse read() const {
    inference::ModelStreamInferResponse response;
    REQUIRE(calls->Read(&response));
    return response;
  }

  grpc::ClientContext context;
  std::unique_ptr<
      grpc::ClientReaderWriter<inference::ModelInferRequest, inference::ModelStreamInferResponse>>
      calls;
};

}  // namespace

TEST_CASE("compressed requests of a stream are answered, and one over the limit does not end it") {
  GrpcService service({.name = "adder", .message_max = 100'000});
  for (auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    OpenStream stream(*service.stub, "", algorithm);
    auto request = infer_request("x", {});
    request.mutable_inputs(0)->set_datatype("UINT8");
    for (size_t bytes : {90'000, 1'000'000, 50'000}) {
      request.mutable_inputs(0)->set_shape(1, static_cast<int64_t>(bytes));
      request.set_raw_input_contents(0, std::string(bytes, 'x'));
      stream.send("1", request);
      auto response = stream.read();
      CHECK(response.error_message().starts_with("the message is larger than 100000 bytes") ==
            (bytes > 100'000));
      if (bytes < 100'000)
        CHECK(response.infer_response().raw_output_contents(0) == request.raw_input_contents(0));
    }
  }
  CHECK(service.backend->refused() == std::vector<int>{413, 413});
}

TEST_CASE("each request of a stream is answered, also one that is wrong") {
  GrpcService service;
  OpenStream stream(*service.stub);
  stream.send("1", infer_request("x", {1, 2}));
  auto first = stream.read();
  CHECK(first.error_message().empty());
  CHECK(first.infer_response().id() == "1");
  CHECK(first.infer_response().model_name() == "adder");
  CHECK(floats(first.infer_response().raw_output_contents(0)) == std::vector<float>{2, 3});

  auto check_error = [&](inference::ModelInferRequest request, const std::string& message) {
    stream.send("e", std::move(request));
    auto response = stream.read();
    CHECK(response.error_message() == message);
    CHECK(response.infer_response().id() == "e");
    CHECK(response.infer_response().outputs_size() == 0);
  };
  auto absent = infer_request("x", {1});
  absent.set_model_name("absent");
  check_error(absent, "there is no model `absent` here, only `adder`");
  auto empty = infer_request("x", {1});
  empty.clear_inputs();
  check_error(empty, "the request has no `inputs`");
  CHECK(service.backend->refused() == std::vector<int>{404, 400});
  check_error(infer_request("boom", {1}), "boom: predict failed");
  check_error(infer_request("drop", {1}), "the service dropped the request");
  auto unknown = infer_request("x", {1});
  unknown.add_outputs()->set_name("y");
  check_error(unknown, "the model has no output `y`: it has `x`");

  stream.send("2", infer_request("x", {8}));
  CHECK(floats(stream.read().infer_response().raw_output_contents(0)) == std::vector<float>{9});
  REQUIRE(stream.calls->WritesDone());
  inference::ModelStreamInferResponse none;
  CHECK_FALSE(stream.calls->Read(&none));
  CHECK(stream.calls->Finish().ok());
}

TEST_CASE("the answers of a stream come in the order in which they are done") {
  GrpcService service;
  service.backend->hold();
  OpenStream stream(*service.stub);
  for (const char* id : {"1", "2", "3"}) stream.send(id, infer_request("x", {1}));
  REQUIRE(stream.calls->WritesDone());
  service.backend->wait_arrived(3);
  for (const char* id : {"3", "2", "1"}) {
    service.backend->answer_newest();
    CHECK(stream.read().infer_response().id() == id);
  }
  inference::ModelStreamInferResponse none;
  CHECK_FALSE(stream.calls->Read(&none));
  CHECK(stream.calls->Finish().ok());
}

TEST_CASE("a stream takes no more requests while many have no answer") {
  GrpcService service;
  service.backend->hold();
  OpenStream stream(*service.stub);
  constexpr size_t kCount = 3 * InferStream::kRequestsMax;
  auto writer = std::async(std::launch::async, [&] {
    bool is_sent = true;
    for (size_t i = 0; i < kCount; i++) {
      auto request = infer_request("x", {static_cast<float>(i)});
      request.set_id(std::to_string(i));
      is_sent = is_sent && stream.calls->Write(request);
    }
    return is_sent && stream.calls->WritesDone();
  });
  service.backend->wait_arrived(InferStream::kRequestsMax);
  // A request of another call arrives later than a further one of the stream would.
  auto other =
      std::async(std::launch::async, [&] { return infer(*service.stub, infer_request("x", {1})); });
  service.backend->wait_arrived(InferStream::kRequestsMax + 1);
  CHECK(service.backend->arrived() == InferStream::kRequestsMax + 1);
  service.backend->release();
  std::map<std::string, int> answered;
  inference::ModelStreamInferResponse response;
  while (stream.calls->Read(&response)) answered[response.infer_response().id()]++;
  CHECK(writer.get());
  CHECK(stream.calls->Finish().ok());
  CHECK(answered.size() == kCount);
  CHECK(other.get().status.ok());
}

TEST_CASE("the requests of a cancelled stream are abandoned") {
  GrpcService service;
  service.backend->hold();
  OpenStream stream(*service.stub);
  for (const char* id : {"1", "2"}) stream.send(id, infer_request("x", {1}));
  service.backend->wait_arrived(2);
  stream.context.TryCancel();
  service.backend->wait_first_abandoned();
  service.backend->release();
  CHECK(stream.calls->Finish().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(infer(*service.stub, infer_request("x", {1})).status.ok());
}

TEST_CASE("a stream without a key ends at once") {
  GrpcService service({.name = "adder"}, {"secret"});
  OpenStream without(*service.stub);
  inference::ModelStreamInferResponse response;
  CHECK_FALSE(without.calls->Read(&response));
  CHECK(without.calls->Finish().error_code() == grpc::StatusCode::UNAUTHENTICATED);
  OpenStream with(*service.stub, "Bearer secret");
  with.send("1", infer_request("x", {1}));
  CHECK(with.read().infer_response().id() == "1");
}

TEST_CASE("a stream ends at the next request after its key was removed") {
  GrpcService service({.name = "adder"}, {"old", "new"});
  service.backend->hold();
  OpenStream stream(*service.stub, "Bearer old"), other(*service.stub, "Bearer new");
  stream.send("1", infer_request("x", {1}));
  service.backend->wait_arrived(1);
  service.backend->set_keys({"new"});
  stream.send("2", infer_request("x", {2}));
  other.send("3", infer_request("x", {3}));
  service.backend->wait_arrived(2);
  service.backend->release();
  // What was taken is answered.
  CHECK(stream.read().infer_response().id() == "1");
  inference::ModelStreamInferResponse none;
  CHECK_FALSE(stream.calls->Read(&none));
  CHECK(stream.calls->Finish().error_code() == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(service.backend->noted().back().status == 401);
  CHECK(other.read().infer_response().id() == "3");
  REQUIRE(other.calls->WritesDone());
  CHECK(other.calls->Finish().ok());
  CHECK(service.backend->arrived() == 2);
}

TEST_CASE("a drain lets a stream finish its requests, and its end cancels the stream") {
  GrpcService service;
  service.backend->hold();
  OpenStream stream(*service.stub);
  stream.send("1", infer_request("x", {1}));
  service.backend->wait_arrived(1);
  SECTION("in time") {
    service.server->begin_drain(600'000);
    service.backend->release();
    CHECK(stream.read().infer_response().id() == "1");
    REQUIRE(stream.calls->WritesDone());
    CHECK(stream.calls->Finish().ok());
    CHECK(service.server->wait_drained(600'000));
  }
  SECTION("too late") {
    service.server->begin_drain(1);
    CHECK(service.server->wait_drained(600'000));
    CHECK_FALSE(stream.calls->Finish().ok());
    service.backend->wait_first_abandoned();
  }
}

TEST_CASE("a client that does not take its answers is cut off") {
  GrpcService service({.name = "adder", .answer_ms = 100});
  service.backend->hold();
  OpenStream stream(*service.stub);
  stream.send("1", infer_request("x", {1}));
  auto request = infer_request("x", {});
  request.mutable_inputs(0)->set_datatype("UINT8");
  request.mutable_inputs(0)->set_shape(1, 8 << 20);
  request.set_raw_input_contents(0, std::string(8 << 20, '\1'));
  stream.send("2", request);
  service.backend->wait_arrived(2);
  // Without a read, the window of the stream stays closed.
  service.backend->answer_newest();
  service.backend->wait_first_abandoned();
  stream.context.TryCancel();
  CHECK_FALSE(stream.calls->Finish().ok());
}
