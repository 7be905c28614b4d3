// The front of a service as clients over gRPC see it.
#include <fstream>
#include <future>

#include "engine/base/temporary_folder.hpp"
#include "tests/serve/adder.hpp"
#include "tests/serve/grpc/client.hpp"

using namespace flow;
using Catch::Contains;
using Catch::StartsWith;

namespace {

constexpr const char* kShown = "gRPC: 127.0.0.1:";

ServiceOptions with_grpc(int port = 0) {
  ServiceOptions options;
  options.name = "adder";
  options.grpc_port = port;
  return options;
}

/// As the log of the first replica shows it.
int grpc_port_of(Service& service) {
  auto lines = service.replica().logged();
  REQUIRE(lines.size() == 1);
  REQUIRE_THAT(lines[0], StartsWith(kShown));
  return port_of(lines[0]);
}

Stub stub_of(Service& service) { return Stub(channel_to(grpc_port_of(service))); }

bool is_model_ready(Stub& stub) {
  grpc::ClientContext context;
  inference::ModelReadyRequest request;
  request.set_name("adder");
  inference::ModelReadyResponse response;
  REQUIRE(stub.ModelReady(&context, request, &response).ok());
  return response.ready();
}

}  // namespace

TEST_CASE("a front answers over gRPC what it answers over HTTP") {
  ServiceOptions options = with_grpc();
  options.inputs = {{"x", "FP32", {-1, 2}}};
  Service service(options);
  Stub stub = stub_of(service);
  CHECK_THAT(service.logged().at(0), StartsWith(kShown));
  CHECK(is_model_ready(stub));
  {
    grpc::ClientContext context;
    inference::ModelMetadataRequest request;
    request.set_name("adder");
    inference::ModelMetadataResponse response;
    REQUIRE(stub.ModelMetadata(&context, request, &response).ok());
    CHECK(response.ShortDebugString() ==
          R"(name: "adder" versions: "1" platform: "flow_lua" )"
          R"(inputs { name: "x" datatype: "FP32" shape: -1 shape: 2 })");
  }
  InferReply reply = infer(stub, infer_request("x", {1, 2}));
  REQUIRE(reply.status.ok());
  CHECK(floats(reply.response.raw_output_contents(0)) == std::vector<float>{2, 3});
  CHECK(infer(stub, infer_request("y", {1, 2})).status.error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  auto malformed = infer_request("x", {1, 2});
  malformed.mutable_inputs(0)->set_datatype("FP1");
  CHECK(infer(stub, malformed).status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  auto absent = infer_request("x", {1, 2});
  absent.set_model_name("absent");
  CHECK(infer(stub, absent).status.error_code() == grpc::StatusCode::NOT_FOUND);
  {
    grpc::ClientContext context;
    inference::ModelStatisticsResponse response;
    REQUIRE(stub.ModelStatistics(&context, {}, &response).ok());
    REQUIRE(response.model_stats_size() == 1);
    CHECK(response.model_stats(0).inference_stats().success().count() == 1);
    CHECK(response.model_stats(0).inference_stats().fail().count() == 2);
  }
  CHECK(service.metric("requests_total,code=\"200\"") == 1);
  CHECK(service.metric("requests_total,code=\"400\"") == 2);
  CHECK(service.metric("requests_total,code=\"404\"") == 0);
}

TEST_CASE("the keys of a service and its timeout hold over gRPC") {
  ServiceOptions options = with_grpc();
  options.keys = {"secret"};
  Service service(options);
  Stub stub = stub_of(service);
  CHECK(infer(stub, infer_request("x", {1})).status.error_code() ==
        grpc::StatusCode::UNAUTHENTICATED);
  CHECK(infer(stub, infer_request("x", {1}), "Bearer secret").status.ok());
  CHECK(is_model_ready(stub));
  // Another engine has another key.
  options.keys = {"other"};
  service.on_loop([&](Front& front) {
    front.renew(service.replica(), {"r1", {"adder[0]", 4711, ""}, options});
  });
  CHECK_FALSE(infer(stub, infer_request("x", {1}), "Bearer secret").status.ok());
  CHECK(infer(stub, infer_request("x", {1}), "Bearer other").status.ok());
}

TEST_CASE("a request over gRPC whose deadline passes in the queue is answered") {
  ServiceOptions options = with_grpc();
  options.request_timeout_ms = 50;
  Service service(options);
  Stub stub = stub_of(service);
  service.hold();
  CHECK(infer(stub, infer_request("x", {1})).status.error_code() ==
        grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_CASE("a front that drains answers the open calls over gRPC and then ends") {
  Service service(with_grpc());
  const int port = grpc_port_of(service);
  auto channel = channel_to(port);
  Stub stub(channel);
  service.hold();
  auto open = std::async(std::launch::async, [&] { return infer(stub, infer_request("x", {1})); });
  service.wait_calls(1);
  CHECK_FALSE(service.has_ended());
  service.begin_stop();
  for (int connected; (connected = connect_to(port)) >= 0;) ::close(connected);
  wait_for_goaway(*channel);
  CHECK_FALSE(infer(stub, infer_request("x", {5})).status.ok());
  CHECK_FALSE(service.has_ended());
  service.release();
  CHECK(open.get().status.ok());
  service.wait_end();
}

TEST_CASE("a front whose drain has no time left answers the open calls over gRPC with an error") {
  Service service(with_grpc(), {.drain_ms = 1});
  Stub stub = stub_of(service);
  service.hold();
  auto open = std::async(std::launch::async, [&] { return infer(stub, infer_request("x", {1})); });
  service.wait_calls(1);
  service.stop();
  grpc::Status status = open.get().status;
  CHECK(status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_THAT(status.error_message(), Contains("the service is stopping"));
}

TEST_CASE("a front that ends while it is asked over gRPC answers or cancels the questions") {
  std::vector<std::thread> clients;
  {
    Service service(with_grpc());
    const int port = grpc_port_of(service);
    std::promise<void> asked;
    for (int i = 0; i < 4; i++)
      clients.emplace_back([port, i, &asked] {
        Stub stub(channel_to(port));
        inference::ServerReadyResponse response;
        for (bool is_first = true;; is_first = false) {
          grpc::ClientContext context;
          if (!stub.ServerReady(&context, {}, &response).ok()) return;
          if (is_first && i == 0) asked.set_value();
        }
      });
    asked.get_future().wait();
  }
  for (std::thread& each : clients) each.join();
}

TEST_CASE("a version with another port for gRPC cannot join, and a port in use is an error") {
  Service service(with_grpc());
  AdderReplica& other = service.add_unjoined();
  for (int port : {-1, 1}) {
    Status joined = service.join(other, "r2", with_grpc(port));
    REQUIRE_FALSE(joined.ok());
    CHECK_THAT(joined.error().message,
               StartsWith("the service `adder` has another `grpc` than the version that serves at "
                          "http://127.0.0.1:"));
  }
  service.add("r2", with_grpc());

  Service second(with_grpc(), {.replicas = 0});
  AdderReplica& rejected = second.add_unjoined();
  Status joined = second.join(rejected, "r1", with_grpc(grpc_port_of(service)));
  REQUIRE_FALSE(joined.ok());
  CHECK_THAT(joined.error().message, Contains("write `grpc = 0` for a free one"));
  // The port for HTTP is free again, and so is that of gRPC if the one for HTTP is taken.
  ServiceOptions taken = with_grpc();
  taken.port = static_cast<uint16_t>(service.port);
  CHECK_FALSE(second.join(rejected, "r1", taken).ok());
  CHECK(second.join(rejected, "r1", with_grpc()).ok());
}

TEST_CASE("a free port for gRPC is kept for the next front") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  const std::string file = **folder + "/front.grpc_port";
  int port = 0, written = 0;
  {
    Service first(with_grpc(), {.grpc_port_file = file});
    port = grpc_port_of(first);
    std::ifstream(file) >> written;
    CHECK(written == port);
  }
  Service second(with_grpc(), {.grpc_port_file = file});
  CHECK(grpc_port_of(second) == port);
}

TEST_CASE("a front logs calls over gRPC with their client and their trace") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  const std::string path = **folder + "/access.log";
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  {
    ServiceOptions options = with_grpc();
    options.access_log = 1;
    Service service(options, {.access_log = path});
    Stub stub = stub_of(service);
    CHECK(is_model_ready(stub));
    {
      grpc::ClientContext context;
      context.AddMetadata("traceparent", "00-" + trace + "-00f067aa0ba902b7-01");
      inference::ModelInferResponse response;
      REQUIRE(stub.ModelInfer(&context, infer_request("x", {1, 2}), &response).ok());
    }
    CHECK_FALSE(infer(stub, infer_request("boom", {1, 2})).status.ok());
    auto absent = infer_request("x", {1, 2});
    absent.set_model_name("absent");
    CHECK_FALSE(infer(stub, absent).status.ok());
  }
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  REQUIRE(lines.size() == 4);
  const std::string method = R"("path":"/inference.GRPCInferenceService/)";
  CHECK_THAT(lines[0], Contains(method + R"(ModelReady","status":200)"));
  CHECK_THAT(lines[1], Contains(R"("protocol":"grpc","client":"127.0.0.1","method":"POST",)" +
                                method + R"(ModelInfer","status":200)") &&
                           Contains(R"("batch_rows":1,)") &&
                           Contains(R"("version":"r1","replica":"adder[0]","trace":")" + trace));
  CHECK_THAT(lines[1], !Contains("\"bytes_in\":0,") && !Contains("\"bytes_out\":0,"));
  CHECK_THAT(lines[2], Contains("\"status\":500") && Contains("\"trace\":null"));
  CHECK_THAT(lines[3], Contains("\"status\":404") && Contains("\"version\":null"));
}
