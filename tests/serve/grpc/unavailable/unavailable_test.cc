// A build without gRPC.
#include <catch2/catch.hpp>

#include "engine/serve/grpc/grpc_server.hpp"

using namespace flow;

namespace {

class AbsentModel final : public InferenceBackend {
  std::string model() const override { return ""; }
  bool permits(std::string_view) const override { return false; }
  bool is_ready() const override { return false; }
  std::string describe(Endpoint) const override { return ""; }
  void infer(InferRequest, std::optional<Clock::time_point>,
             std::unique_ptr<InferResponder>) override {}
  void count_refused(int, Clock::duration) override {}
};

}  // namespace

TEST_CASE("a build without gRPC says what is missing and what to do") {
  AbsentModel model;
  auto opened = GrpcServer::open({.name = "digits"}, model);
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().kind == ErrorKind::user);
  CHECK(opened.error().message ==
        "the service `digits` cannot listen for gRPC: this flow was built without it. Install "
        "libgrpc++-dev and protobuf-compiler-grpc and build it again with -DFLOW_GRPC=ON, or "
        "remove the option `grpc`");
}
