// A server on loopback with a fake model, and requests to it.
#pragma once
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <catch2/catch.hpp>
#include <initializer_list>
#include <string>
#include <thread>

#include "engine/serve/grpc/grpc_server.hpp"
#include "engine/serve/grpc/inference.grpc.pb.h"
#include "tests/serve/grpc/fake_backend.hpp"

namespace flow {

using Stub = inference::GRPCInferenceService::Stub;

inline std::shared_ptr<grpc::Channel> channel_to(
    const std::string& target,
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(target, std::move(credentials), arguments);
}

/// To a port of loopback.
inline std::shared_ptr<grpc::Channel> channel_to(
    int port,
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials()) {
  return channel_to("127.0.0.1:" + std::to_string(port), std::move(credentials));
}

/// Until the server has said that it takes no more calls on this connection.
inline void wait_for_goaway(grpc::Channel& channel) {
  while (channel.GetState(false) == GRPC_CHANNEL_READY) std::this_thread::yield();
}

/// A server and a client of it.
struct GrpcService {
  explicit GrpcService(const GrpcOptions& options = {.name = "adder"},
                       std::vector<std::string> keys = {})
      : backend(std::make_shared<FakeBackend>(std::move(keys))) {
    auto opened = GrpcServer::open(options, *backend);
    REQUIRE(opened.ok());
    server = std::move(*opened);
    if (!options.tls) stub = std::make_unique<Stub>(channel_to(server->port()));
  }

  std::shared_ptr<FakeBackend> backend;
  std::unique_ptr<GrpcServer> server;
  std::unique_ptr<Stub> stub;
};

/// A request with one input of values, which are raw.
inline inference::ModelInferRequest infer_request(const std::string& input,
                                                  std::initializer_list<float> values) {
  inference::ModelInferRequest request;
  request.set_model_name("adder");
  auto& tensor = *request.add_inputs();
  tensor.set_name(input);
  tensor.set_datatype("FP32");
  tensor.add_shape(1);
  tensor.add_shape(static_cast<int64_t>(values.size()));
  request.add_raw_input_contents(
      std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float)));
  return request;
}

inline std::vector<float> floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct InferReply {
  grpc::Status status;
  inference::ModelInferResponse response;
};

inline InferReply infer(Stub& stub, const inference::ModelInferRequest& request,
                        const std::string& authorization = "") {
  InferReply reply;
  grpc::ClientContext context;
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  reply.status = stub.ModelInfer(&context, request, &reply.response);
  return reply;
}

}  // namespace flow
