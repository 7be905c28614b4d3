// The attempt of a service: a replica of its front. The main thread answers the front's batches.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/size_units.hpp"
#include "engine/executor/attempt.hpp"
#include "engine/executor/replica_link.hpp"
#include "engine/executor/service_lease.hpp"
#include "engine/executor/service_options.hpp"
#include "engine/serve/batch.hpp"
#include "engine/serve/http/trace_context.hpp"
#include "engine/serve/oip_datatypes.hpp"
#include "engine/serve/predict_result.hpp"
#include "engine/serve/request_parameters.hpp"
#include "engine/serve/service_options.hpp"
#include "engine/serve/tensor_frames.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kPredictErrorMax =
    4096;                        // bytes of a script's error, in a response and in the log
constexpr int64_t kEndMs = 500;  // between the last response and the end of the attempt

/// The worker kills the attempt at the end of its grace.
int64_t drain_ms_of(int64_t grace_ms) { return grace_ms - std::min(kEndMs, grace_ms / 4); }

Result<Tensors> predict(Attempt& attempt, ScriptVm& vm, const BatchMessage& batch,
                        ResponseParameters& parameters) {
  std::vector<PredictedRequest> requests;
  for (const BatchedRequest& each : batch.requests) {
    ParameterTables tables = parameter_tables(each.parameters);
    requests.push_back({each.id, each.rows, each.traceparent,
                        std::string(trace_id_of(each.traceparent)), std::move(tables.request),
                        std::move(tables.inputs), std::move(tables.outputs)});
  }
  auto result = vm.predict(predict_inputs(batch.inputs), requests);
  if (!result.ok())
    return Error{ErrorKind::task,
                 cut_text(attempt.hidden(result.error().message), kPredictErrorMax)};
  auto outputs = tensors_by_name(result->outputs, attempt.shown_task());
  if (!outputs.ok()) return outputs;
  auto returned = response_parameters(result->response, requests.size(), attempt.shown_task());
  FLOW_TRY(returned);
  parameters = std::move(*returned);
  if (uint64_t bytes = bytes_of(*outputs); bytes > kTensorBytesMax)
    return Error{
        ErrorKind::task,
        fmt::format("`predict` returned {}, and the outputs of a batch may have {}: return "
                    "less, or lower `batch.max`",
                    format_bytes(bytes), format_bytes(kTensorBytesMax))};
  return outputs;
}

/// Answers the service's request of the option `warmup`, so that no client waits for what only the
/// first call does.
Status warm_up(Attempt& attempt, ScriptVm& vm, const std::vector<WarmupTensor>& warmup) {
  if (warmup.empty()) return {};
  BatchMessage batch;
  for (const WarmupTensor& from : warmup) {
    InferTensor& tensor = batch.inputs[from.name];
    if (!set_element_type(tensor, from.dtype))
      return internal_error(fmt::format("unknown type {} of the warm-up", from.dtype));
    tensor.shape = from.shape;
    tensor.data = std::make_shared<const std::string>(from.data);
  }
  batch.requests.push_back({.rows = rows_of(batch.inputs)});
  ResponseParameters parameters;
  auto outputs = predict(attempt, vm, batch, parameters);
  if (outputs.ok()) return {};
  return user_error(fmt::format("`{}` failed to answer its `warmup` request: {}",
                                attempt.shown_task(), outputs.error().message));
}

/// Logs each call of `predict` that takes longer than the `timeout` of the service, as soon as it
/// does: such a call may never return, and the main thread is busy until then.
class CallWatch {
 public:
  explicit CallWatch(Attempt& attempt)
      : attempt_(attempt), thread_([this](const std::stop_token& stop) { watch(stop); }) {}

  /// The thread is woken only if no call was under way when it last looked.
  void begin() {
    constexpr int64_t kTimeoutMsMax = int64_t{365} * 24 * 3600 * 1000;
    int64_t timeout_ms = attempt_.start().request_timeout_ms();
    if (timeout_ms <= 0) timeout_ms = ServiceOptions{}.request_timeout_ms;
    std::lock_guard lock(mutex_);
    timeout_ms_ = timeout_ms;
    deadline_ = Clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kTimeoutMsMax));
    if (std::exchange(is_idle_, false)) begun_.notify_one();
  }
  void end() {
    std::lock_guard lock(mutex_);
    deadline_.reset();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (!deadline_) {
        is_idle_ = true;
        begun_.wait(lock, stop, [this] { return !is_idle_; });
        continue;
      }
      begun_.wait_until(lock, stop, Clock::time_point(*deadline_), [] { return false; });
      if (!deadline_ || *deadline_ > Clock::now()) continue;
      deadline_.reset();
      attempt_.log(fmt::format("a call of `predict` takes longer than the `timeout` of {}",
                               format_duration(timeout_ms_)));
    }
  }

  Attempt& attempt_;
  std::mutex mutex_;
  std::condition_variable_any begun_;
  std::optional<Clock::time_point> deadline_;  // of the call that is under way and not logged
  int64_t timeout_ms_ = 0;
  bool is_idle_ = false;
  std::jthread thread_;  // last: it uses the other members
};

/// The attempt of a service while it serves.
class Serving {
 public:
  Serving(Attempt& attempt, ScriptVm& vm, const ServiceAccess& access)
      : attempt_(attempt), vm_(vm), replica_(options_of(access)) {
    grace_ms_ = attempt_.start().grace_ms();
    attempt_.link().set_on_stop([this] { leave(); });
    if (attempt_.stopping()) leave();
  }
  ~Serving() { attempt_.link().set_on_stop({}); }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  /// Joins the front, and answers until the attempt is asked to stop.
  Status run() {
    FLOW_TRY(replica_.join());
    ServiceLease lease(attempt_, [this] { replica_.wake(); });
    is_ready_ = true;
    attempt_.service_ready(url_);
    CallWatch watch(attempt_);
    return replica_.serve(
        [&](const BatchMessage& batch, ResponseParameters& parameters) {
          watch.begin();
          auto outputs = predict(attempt_, vm_, batch, parameters);
          watch.end();
          return outputs;
        },
        [&] {
          if (auto order = attempt_.link().take_adoption()) adopt(*order, lease);
        });
  }

 private:
  ReplicaOptions options_of(const ServiceAccess& access) {
    ReplicaOptions options;
    options.folder = attempt_.start().front();
    options.join = join_of(attempt_.start(), access);
    options.on_url = [this](const std::string& url) {
      url_ = url;
      if (is_ready_) attempt_.service_ready(url_);
    };
    options.log = [this](const std::string& line) { attempt_.log(line); };
    options.collect = [this] { vm_.collect(); };
    return options;
  }

  void leave() {
    const WorkerLink& link = attempt_.link();
    replica_.leave(drain_ms_of(link.stop_grace_ms(grace_ms_)), link.is_drained());
  }

  void adopt(const wire::Start& order, ServiceLease& lease) {
    attempt_.adopt(order);
    grace_ms_ = attempt_.start().grace_ms();
    lease.renew();
    // The keys are those of the process that resumes the run.
    if (auto access = read_service_access(attempt_.start()); access.ok()) {
      attempt_.hide(access->keys);
      replica_.renew(join_of(attempt_.start(), *access));
    }
    attempt_.service_ready(url_);
  }

  Attempt& attempt_;
  ScriptVm& vm_;
  std::string url_;
  bool is_ready_ = false;
  std::atomic<int64_t> grace_ms_ = 0;  // also read by the thread that receives the stop
  ReplicaLink replica_;
};

}  // namespace

void run_service(Attempt& attempt, ScriptVm& vm, const AttemptRequest& request) {
  const wire::Start& start = attempt.start();
  auto access = read_service_access(start);
  if (!access.ok()) {
    attempt.fail(core::Cause::user_error,
                 fmt::format("{}: {}", start.shell().defined_at(), access.error().message), "");
    return;
  }
  attempt.hide(access->keys);
  attempt.set_serving();
  AttemptOutcome outcome = vm.start_service(request, attempt);
  bool is_ready = outcome.kind == AttemptOutcome::Kind::succeeded;
  if (!is_ready && !attempt.close_checkpoints(outcome.kind)) return;
  if (outcome.kind == AttemptOutcome::Kind::stopped) return attempt.stopped();
  if (outcome.kind == AttemptOutcome::Kind::waiting) {
    return attempt.fail(core::Cause::user_error,
                        fmt::format("the service `{}` waited for a signal: a service only "
                                    "answers, wait in a task that it comes after",
                                    attempt.shown_task()),
                        "");
  }
  if (outcome.kind != AttemptOutcome::Kind::succeeded) return attempt.fail(outcome);
  Status served = warm_up(attempt, vm, access->spec.warmup);
  if (served.ok()) served = Serving(attempt, vm, *access).run();
  bool has_failed = !served.ok() && served.error().kind != ErrorKind::interrupted;
  bool are_checkpoints_done = attempt.close_checkpoints(AttemptOutcome::Kind::stopped);
  vm.end_service();
  if (!are_checkpoints_done) return;
  if (!has_failed) return attempt.stopped();
  core::Cause cause =
      served.error().kind == ErrorKind::user ? core::Cause::user_error : core::Cause::staging;
  attempt.fail(cause, fmt::format("{}: {}", start.shell().defined_at(), served.error().message),
               "");
}

}  // namespace flow
