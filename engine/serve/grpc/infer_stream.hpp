// One call of ModelStreamInfer: requests, and an answer to each in the order in which they are
// done.
#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <mutex>

#include "engine/serve/grpc/call_timer.hpp"
#include "engine/serve/grpc/infer_call.hpp"
#include "engine/serve/inference_backend.hpp"

namespace flow {

/// Each request needs a key that permits it. It uses the backend only while it reads a request. It
/// owns itself until gRPC is done with it and the backend has answered all its requests.
class InferStream final : public CallReactor, public std::enable_shared_from_this<InferStream> {
 public:
  /// No further request is read while so many have no answer that was sent.
  static constexpr size_t kRequestsMax = 64;

  static CallReactor* start(const InferCallOptions& options, grpc::CallbackServerContext& context);
  InferStream(const InferCallOptions& options, grpc::CallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class Responder;
  void take();
  void note(const CallStatus& refusal) const;
  void send(grpc::ByteBuffer answer);
  bool is_cancelled() const;
  // With the lock:
  void advance();
  void cancel();
  void refuse(const CallStatus& refusal);

  const InferCallOptions options_;
  grpc::CallbackServerContext& context_;  // until OnDone()
  grpc::ByteBuffer in_, out_;             // of the read and the write that are under way
  mutable std::mutex mutex_;
  std::deque<grpc::ByteBuffer> responses_;  // up to kRequestsMax
  size_t open_ = 0;                         // requests without an answer that was sent
  bool is_reading_ = false, is_writing_ = false;
  bool is_at_end_ = false;  // the client sends no more
  bool is_cancelled_ = false, is_finished_ = false;
  grpc::Status refusal_;  // of the whole stream
  CallTimer timer_;
  std::shared_ptr<InferStream> self_;
};

}  // namespace flow
