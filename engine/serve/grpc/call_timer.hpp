// Cancels a call whose client does not send its message or take its answer in time, because the
// call and its memory are held until then.
#pragma once
#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <chrono>
#include <memory>

namespace flow {

/// One thread at a time uses it.
class CallTimer {
 public:
  void start(grpc::CallbackServerContext& context, std::chrono::milliseconds time);
  /// No effect on the context follows.
  void stop();

 private:
  struct Call;
  std::shared_ptr<Call> call_;
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace flow
