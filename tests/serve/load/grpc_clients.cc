#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <cstring>

#include "engine/serve/grpc/inference.grpc.pb.h"
#include "loading_client.hpp"

namespace flow::load {
namespace {

using Stub = inference::GRPCInferenceService::Stub;

constexpr int kStreamRequests = 50;
constexpr std::chrono::seconds kConnectTime{30};

inference::ModelInferRequest message_of(const std::string& model, int number) {
  inference::ModelInferRequest request;
  request.set_model_name(model);
  auto& tensor = *request.add_inputs();
  tensor.set_name("x");
  tensor.set_datatype("FP32");
  tensor.add_shape(1);
  tensor.add_shape(1);
  tensor.mutable_contents()->add_fp32_contents(static_cast<float>(number));
  return request;
}

double number_of(const inference::ModelInferResponse& response) {
  float value = 0;
  if (response.raw_output_contents_size() == 1 &&
      response.raw_output_contents(0).size() == sizeof value)
    std::memcpy(&value, response.raw_output_contents(0).data(), sizeof value);
  return static_cast<double>(value);
}

class GrpcLoad : public LoadingClient {
 public:
  GrpcLoad(const std::string& kind, const Target& target) : LoadingClient(kind, target) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(target.grpc_port),
                                             grpc::InsecureChannelCredentials(), arguments);
    // The first connections of a process are made here, where the library repeats them: gRPC 1.51
    // reads `errno` of connect() late. If it measures its clock in between, which it does once, it
    // takes a connection that succeeds for one that failed with "No such file or directory".
    channel->WaitForConnected(std::chrono::system_clock::now() + kConnectTime);
    stub_ = std::make_unique<Stub>(channel);
  }

 protected:
  void fail_with(const grpc::Status& status) {
    const std::string& message = status.error_message();
    // Only that: a connection that fails for another reason, as one that the server drops, is a
    // failure.
    bool is_refused = status.error_code() == grpc::StatusCode::UNAVAILABLE &&
                      message.find("onnection refused") != std::string::npos;
    if (is_refused) return refuse();
    fail(std::to_string(status.error_code()) + " " + message);
  }
  Stub& stub() { return *stub_; }

 private:
  std::unique_ptr<Stub> stub_;
};

class CallLoad final : public GrpcLoad {
 public:
  using GrpcLoad::GrpcLoad;

 protected:
  void use_connection() override {
    int number = next_number();
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    int64_t began = now_us();
    grpc::Status status =
        stub().ModelInfer(&context, message_of(target().model, number), &response);
    if (!status.ok()) return fail_with(status);
    succeed(began, number_of(response) / number);
  }
};

class StreamLoad final : public GrpcLoad {
 public:
  using GrpcLoad::GrpcLoad;

 protected:
  void use_connection() override {
    grpc::ClientContext context;
    auto stream = stub().ModelStreamInfer(&context);
    bool is_good = true;
    for (int i = 0; i < kStreamRequests && is_good && !is_stopped(); i++) {
      int number = next_number();
      inference::ModelStreamInferResponse response;
      int64_t began = now_us();
      is_good = stream->Write(message_of(target().model, number)) && stream->Read(&response);
      if (!is_good) break;
      if (response.error_message().empty())
        succeed(began, number_of(response.infer_response()) / number);
      else
        fail(response.error_message());
    }
    stream->WritesDone();
    grpc::Status status = stream->Finish();
    if (!status.ok()) return fail_with(status);
    if (!is_good) fail("a stream ended before the client ended it");
  }
};

}  // namespace

std::unique_ptr<LoadingClient> grpc_client(const std::string& kind, const Target& target) {
  if (kind == "call") return std::make_unique<CallLoad>(kind, target);
  if (kind == "stream") return std::make_unique<StreamLoad>(kind, target);
  return nullptr;
}

}  // namespace flow::load
