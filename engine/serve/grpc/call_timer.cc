#include "engine/serve/grpc/call_timer.hpp"

#include <mutex>

namespace flow {

/// The alarm may fire on another thread while the call ends.
struct CallTimer::Call {
  std::mutex mutex;
  grpc::CallbackServerContext* context = nullptr;  // null: the timer is stopped
};

void CallTimer::start(grpc::CallbackServerContext& context, std::chrono::milliseconds time) {
  stop();
  call_ = std::make_shared<Call>();
  call_->context = &context;
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + time, [call = call_](bool is_due) {
    std::lock_guard lock(call->mutex);
    if (is_due && call->context != nullptr) call->context->TryCancel();
  });
}

void CallTimer::stop() {
  if (!call_) return;
  {
    std::lock_guard lock(call_->mutex);
    call_->context = nullptr;
  }
  alarm_.reset();
  call_.reset();
}

}  // namespace flow
