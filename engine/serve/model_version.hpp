// One version of a service whose replicas run batches of requests.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/thread_pool.hpp"
#include "engine/serve/http/event_loop.hpp"
#include "engine/serve/service_version.hpp"

namespace flow {

/// What the versions of a front share.
struct FrontThreads {
  EventLoop& loop;
  ThreadPool& encoder;
};

/// Only the loop's thread uses it.
class ModelVersion final : public ServiceVersion {
 public:
  /// As ServiceVersion; `threads` outlives it too.
  ModelVersion(std::string id, ServiceOptions options, const FrontThreads& threads,
               std::function<void(const std::string&)> log, std::function<void()> changed);

  /// A request that has just arrived. `timeout` is what it asks for; the service's bounds it.
  std::unique_ptr<PendingRequest> new_request(std::unique_ptr<InferResponder> responder,
                                              std::optional<Clock::duration> timeout) const;
  /// Takes a request with its tensors; answers one that cannot be admitted.
  void admit(std::unique_ptr<PendingRequest> pending);
  /// Takes a request that another version has admitted.
  void adopt(std::unique_ptr<PendingRequest> pending);
  void complete_step(uint32_t requests) override;
  /// Answers 429 for a request whose body is not worth reading.
  void refuse_full(PendingRequest& pending);
  /// Answers a request that is not admitted with an error, and counts it.
  void refuse(PendingRequest& pending, int status, const std::string& message);

  /// Whether a further request would get 429.
  bool is_full() const { return scheduler_.is_full(); }
  /// The outcome of a replica's batch. False if it does not run this one.
  bool finish(FrontReplica& replica, uint64_t batch, Result<Tensors> outputs,
              ResponseParameters parameters);

  void set_options(ServiceOptions options) override;
  std::string full_text() const override;
  size_t queued() const override { return scheduler_.queued(); }
  size_t running() const override { return scheduler_.running(); }
  void hand_over(const std::function<std::shared_ptr<ServiceVersion>()>& next) override;
  size_t close() override { return scheduler_.close(); }
  void set_leaving(FrontReplica& replica, bool is_replaced) override;
  bool stop_running(FrontReplica& replica) override;
  bool has_staying() const override { return scheduler_.has_staying(); }

 private:
  RequestWaits waits(Clock::time_point now) const override { return scheduler_.waits(now); }
  ReplicaState state(const FrontReplica& replica) const override;
  void begin(FrontReplica& replica, const FrontReplica::Description& description) override;
  void end(FrontReplica& replica) override;
  bool is_overdue() const override { return scheduler_.is_overdue(Clock::now()); }
  Clock::time_point next_request_event() const override { return scheduler_.next_event(); }
  void run_requests_due(Clock::time_point now) override { scheduler_.run_due(now); }

  RequestScheduler::Outcomes outcomes();
  void answer_with(PendingRequest& pending, Result<Tensors>& result);
  Status encode(PendingRequest& pending, const Tensors& outputs) const;
  void encode_apart(PendingRequest& pending, Tensors outputs, uint64_t bytes);
  void answer(PendingRequest& pending, const Status& encoded);
  void fail(PendingRequest& pending, const Error& error);
  /// Of an admitted request.
  void reject(PendingRequest& pending, int status, const std::string& message);
  void reject_unserved(PendingRequest& pending, int status);
  /// Why a request got no answer when its replica or the service was stopped.
  std::string stop_text(const PendingRequest& pending) const;
  void count_call(int64_t rows, Clock::duration duration);

  const FrontThreads threads_;
  RequestScheduler scheduler_;
  uint64_t encoding_bytes_ = 0;  // of outputs that wait for the encoder
};

}  // namespace flow
