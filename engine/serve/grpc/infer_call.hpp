// One call of ModelInfer: a request and its answer.
#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "engine/serve/grpc/call_rules.hpp"
#include "engine/serve/grpc/call_timer.hpp"
#include "engine/serve/inference_backend.hpp"

namespace flow {

/// What the calls of a server need.
struct InferCallOptions {
  InferenceBackend& backend;
  GrpcConnections& connections;
  size_t message_max = 0;                     // bytes of a request, also when decompressed
  std::chrono::milliseconds describe_time{};  // for a whole call other than one for inference
  std::chrono::milliseconds message_time{};   // in which the message of ModelInfer must arrive
  std::chrono::milliseconds answer_time{};    // in which a client must take a large answer
};

/// What answers a call. Also calls of one request have it: gRPC would read the whole message of a
/// unary call before anything could refuse it.
using CallReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

/// It uses the backend only while it checks the key and reads the request. It owns itself until
/// gRPC is done with it and the backend has answered.
class InferCall final : public CallReactor, public std::enable_shared_from_this<InferCall> {
 public:
  /// A call without a key is refused before its message arrives.
  static CallReactor* start(const InferCallOptions& options, grpc::CallbackServerContext& context);
  InferCall(const InferCallOptions& options, grpc::CallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class Responder;
  void take();
  void refuse(RequestRecord record, const CallStatus& status);
  void send(grpc::ByteBuffer& response);
  void finish(const CallStatus& status);

  const InferCallOptions options_;
  grpc::CallbackServerContext& context_;  // until OnDone()
  grpc::ByteBuffer request_, response_;
  // The first to set it, the backend's answer or the end of the call, finishes the call.
  std::atomic<bool> is_answered_{false};
  std::atomic<bool> is_cancelled_{false};
  CallTimer timer_;
  std::shared_ptr<InferCall> self_;
};

}  // namespace flow
