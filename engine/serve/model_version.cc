#include "engine/serve/model_version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "engine/base/size_units.hpp"
#include "engine/serve/batch.hpp"
#include "engine/serve/declared_tensors.hpp"
#include "engine/serve/http/trace_context.hpp"
#include "engine/serve/request_parameters.hpp"
#include "engine/serve/tensor_frames.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

using std::chrono::milliseconds;

constexpr uint64_t kEncodeBytesMax = 64u << 20;  // then no batch is started
constexpr size_t kIdBytesLogged = 64;
const char* const kServiceStops = "the service is stopping";
const char* const kNoMemory = "the service has too little memory left for this request";

RequestScheduler::Limits limits_of(const ServiceOptions& options) {
  return {.rows_max = options.batch_max,
          .batch_wait = std::chrono::microseconds(options.batch_wait_us),
          .queue_max = options.queue,
          .call_max = milliseconds(options.request_timeout_ms),
          .is_idempotent = options.is_idempotent,
          .is_padded = options.is_padded};
}

/// "request `7` of the trace 4bf92f3577b34da6a3ce929d0e0e4736"
std::string logged_name(const PendingRequest& pending) {
  std::string name = "request", id = cut_text(to_line(pending.request.id), kIdBytesLogged);
  if (!id.empty()) name += " `" + id + "`";
  if (!pending.traceparent.empty())
    name += fmt::format(" of the trace {}", trace_id_of(pending.traceparent));
  return name;
}

/// Of a warm-up request: nothing reads the answer.
class NoResponder : public InferResponder {
 public:
  bool is_abandoned() const override { return false; }
  uint64_t inline_bytes_max() const override { return std::numeric_limits<uint64_t>::max(); }
  Status encode(const std::string&, const InferRequest&, const Tensors&) override { return {}; }
  void send() override {}
  void fail(int, const std::string&) override {}
};

}  // namespace

ModelVersion::ModelVersion(std::string id, ServiceOptions options, const FrontThreads& threads,
                           std::function<void(const std::string&)> log,
                           std::function<void()> changed)
    : ServiceVersion(std::move(id), std::move(options), std::move(log), std::move(changed)),
      threads_(threads),
      scheduler_(limits_of(this->options()), outcomes()) {}

RequestScheduler::Outcomes ModelVersion::outcomes() {
  return {
      .finished = [this](PendingRequest& pending,
                         Result<Tensors>& result) { answer_with(pending, result); },
      .rejected = [this](PendingRequest& pending, int status) { reject_unserved(pending, status); },
      .called = [this](int64_t rows, Clock::duration duration) { count_call(rows, duration); },
      .begun = [this](Clock::duration wait) { counters().count_wait(wait, Clock::now()); },
      .started = [this](PendingRequest& pending, const Replica& replica,
                        int64_t rows) { note_start(pending.record.get(), replica, rows); }};
}

void ModelVersion::set_options(ServiceOptions options) {
  bool has_other_inputs = options.inputs != this->options().inputs;
  ServiceVersion::set_options(std::move(options));
  scheduler_.set_limits(limits_of(this->options()));
  BatchQueue::Requests waiting;
  if (has_other_inputs) waiting = scheduler_.take_queue();
  for (auto& request : waiting) {
    Status declared = check_inputs(this->options().inputs, request->request);
    if (declared.ok())
      scheduler_.adopt(std::move(request), Clock::now());
    else
      reject(*request, 400, declared.error().message);
  }
  changed();
}

// ---- Admission

std::unique_ptr<PendingRequest> ModelVersion::new_request(
    std::unique_ptr<InferResponder> responder, std::optional<Clock::duration> timeout) const {
  auto pending = std::make_unique<PendingRequest>();
  Clock::duration longest = milliseconds(options().request_timeout_ms);
  pending->responder = std::move(responder);
  pending->arrived = Clock::now();
  pending->deadline = pending->arrived + std::min(timeout.value_or(longest), longest);
  return pending;
}

void ModelVersion::admit(std::unique_ptr<PendingRequest> pending) {
  note_version(pending->record.get());
  Status declared = check_inputs(options().inputs, pending->request);
  if (!declared.ok()) return refuse(*pending, 400, declared.error().message);
  auto timeout = timeout_of(pending->request.parameters);
  if (!timeout.ok()) return refuse(*pending, 400, timeout.error().message);
  if (*timeout) pending->deadline = std::min(pending->deadline, pending->arrived + **timeout);
  if (uint64_t bytes = bytes_of(pending->request.inputs); bytes > kTensorBytesMax)
    return refuse(*pending, 413,
                  fmt::format("the inputs have {}, and a request may have {}: send fewer rows",
                              format_bytes(bytes), format_bytes(kTensorBytesMax)));
  pending->is_alone = !have_rows(options().inputs) || !have_rows(options().outputs);
  switch (scheduler_.push(pending, Clock::now())) {
    case RequestScheduler::Admission::admitted:
      return;
    case RequestScheduler::Admission::full:
      return refuse_full(*pending);
    case RequestScheduler::Admission::too_many_bytes:
      return refuse(
          *pending, 429,
          fmt::format("the queue of `{}` is full: with this request its tensors would "
                      "have more than {}; try again later",
                      options().name, format_bytes(RequestScheduler::Limits{}.bytes_max)));
    case RequestScheduler::Admission::too_late:
      return refuse(*pending, 429,
                    fmt::format("the queue of `{}` is too long: the {} requests in it would take "
                                "all the time of this one; try again later",
                                options().name, scheduler_.queued()));
    case RequestScheduler::Admission::closed:
      return refuse(*pending, 503, kServiceStops);
  }
}

void ModelVersion::adopt(std::unique_ptr<PendingRequest> pending) {
  note_version(pending->record.get());
  Status declared = check_inputs(options().inputs, pending->request);
  if (declared.ok()) return scheduler_.adopt(std::move(pending), Clock::now());
  reject(*pending, 502,
         fmt::format("the replicas of the version that the request was for are gone, and another "
                     "version takes other inputs: {}",
                     declared.error().message));
}

void ModelVersion::complete_step(uint32_t requests) {
  if (options().warmup.empty()) return;
  uint64_t waiting = scheduler_.queued();
  uint64_t begun = counters().figures(Clock::now()).step_requests + waiting + scheduler_.running();
  uint64_t last = std::min<uint64_t>(requests, begun + options().queue - waiting);
  for (; begun < last; begun++) {
    auto pending = new_request(std::make_unique<NoResponder>(), std::nullopt);
    pending->request.inputs = options().warmup;
    // One that is refused would count as answered.
    if (scheduler_.push(pending, Clock::now()) != RequestScheduler::Admission::admitted) return;
  }
}

void ModelVersion::refuse(PendingRequest& pending, int status, const std::string& message) {
  note_version(pending.record.get());
  count_refused(status, Clock::now() - pending.arrived);
  pending.responder->fail(status, message);
}

std::string ModelVersion::full_text() const {
  if (!is_full()) return "";
  return fmt::format("the queue of `{}` is full: it holds {} requests; try again later",
                     options().name, options().queue);
}

void ModelVersion::refuse_full(PendingRequest& pending) { refuse(pending, 429, full_text()); }

// ---- Outcomes

void ModelVersion::answer_with(PendingRequest& pending, Result<Tensors>& result) {
  if (!result.ok()) return fail(pending, result.error());
  Status declared = check_outputs(options().outputs, *result);
  if (!declared.ok()) return fail(pending, declared.error());
  uint64_t bytes = bytes_of(*result);
  if (bytes > pending.responder->inline_bytes_max())
    return encode_apart(pending, std::move(*result), bytes);
  answer(pending, encode(pending, *result));
}

Status ModelVersion::encode(PendingRequest& pending, const Tensors& outputs) const {
  try {
    return pending.responder->encode(options().name, pending.request, outputs);
  } catch (const std::bad_alloc&) {
    return environment_error(kNoMemory);
  }
}

/// Batches pause while much waits to be encoded, so that replicas do not run ahead.
void ModelVersion::encode_apart(PendingRequest& pending, Tensors outputs, uint64_t bytes) {
  struct Job {
    PendingRequest pending;
    Tensors outputs;
  };
  auto job = std::make_shared<Job>(Job{std::move(pending), std::move(outputs)});
  encoding_bytes_ += bytes;
  if (encoding_bytes_ > kEncodeBytesMax) scheduler_.set_paused(true, Clock::now());
  threads_.encoder.post(
      [self = std::static_pointer_cast<ModelVersion>(shared_from_this()), job, bytes] {
        Status encoded = self->encode(job->pending, job->outputs);
        self->threads_.loop.post([self, job, bytes, encoded] {
          self->encoding_bytes_ -= bytes;
          self->answer(job->pending, encoded);
          if (self->encoding_bytes_ > kEncodeBytesMax) return;
          self->scheduler_.set_paused(false, Clock::now());
          self->changed();
        });
      });
}

void ModelVersion::answer(PendingRequest& pending, const Status& encoded) {
  if (!encoded.ok()) return fail(pending, encoded.error());
  count(200, Clock::now() - pending.arrived);
  pending.responder->send();
}

void ModelVersion::fail(PendingRequest& pending, const Error& error) {
  if (error.kind == ErrorKind::user) return reject(pending, 400, error.message);
  if (error.kind == ErrorKind::environment) return reject(pending, 503, error.message);
  log(fmt::format("{} failed: {}", logged_name(pending), to_line(error.message)));
  reject(pending, 500, error.message);
}

void ModelVersion::reject_unserved(PendingRequest& pending, int status) {
  switch (status) {
    case 499:  // it arrives if the client has closed only its own direction
      return reject(pending, 499,
                    "the client closed its side of the connection while the request waited: keep "
                    "it open until the response is there");
    case 502: {
      std::string message =
          options().is_idempotent
              ? fmt::format(
                    "{} replicas of `{}` died one after the other while they ran the "
                    "request",
                    pending.deaths, options().name)
              : fmt::format(
                    "the replica of `{}` that ran the request died, and the request is "
                    "not run again, because the service is not `idempotent`",
                    options().name);
      log(fmt::format("{} failed: {}", logged_name(pending), message));
      return reject(pending, 502, message);
    }
    case 503:
      return reject(pending, 503, stop_text(pending));
    default: {
      auto time = std::chrono::ceil<milliseconds>(pending.deadline - pending.arrived);
      return reject(
          pending, status,
          fmt::format("the request was not answered within {}", format_duration(time.count())));
    }
  }
}

std::string ModelVersion::stop_text(const PendingRequest& pending) const {
  if (!pending.was_stopped) return kServiceStops;
  const char* why = options().is_idempotent ? "too little of its time is left"
                                            : "the service is not `idempotent`";
  if (scheduler_.is_closed()) why = kServiceStops;
  return fmt::format(
      "the replica of `{}` that ran the request was stopped at the end of the `--grace` of its "
      "run, and the request is not run again, because {}",
      options().name, why);
}

void ModelVersion::reject(PendingRequest& pending, int status, const std::string& message) {
  note_version(pending.record.get());
  count(status, Clock::now() - pending.arrived);
  pending.responder->fail(status, message);
}

void ModelVersion::count_call(int64_t rows, Clock::duration duration) {
  own_metrics().count_batch(rows, duration);
}

// ---- Replicas

bool ModelVersion::finish(FrontReplica& replica, uint64_t batch, Result<Tensors> outputs,
                          ResponseParameters parameters) {
  return scheduler_.finish(replica, batch, std::move(outputs), Clock::now(), std::move(parameters));
}

void ModelVersion::hand_over(const std::function<std::shared_ptr<ServiceVersion>()>& next) {
  for (auto& request : scheduler_.take_queue())
    static_cast<ModelVersion&>(*next()).adopt(std::move(request));
}

void ModelVersion::set_leaving(FrontReplica& replica, bool is_replaced) {
  scheduler_.set_leaving(replica, Clock::now(), is_replaced);
}

bool ModelVersion::stop_running(FrontReplica& replica) {
  auto stopped = scheduler_.stop(replica, Clock::now());
  auto note = [&](size_t count, const char* what) {
    if (count > 0)
      log(
          fmt::format("requests that a replica had not answered when its time to stop was over and "
                      "{}: {}",
                      what, count));
  };
  note(stopped.waiting, "that run again");
  note(stopped.rejected, "that got status 503");
  return true;
}

ServiceVersion::ReplicaState ModelVersion::state(const FrontReplica& replica) const {
  return scheduler_.state(replica);
}

void ModelVersion::begin(FrontReplica& replica, const FrontReplica::Description&) {
  scheduler_.add(replica, Clock::now());
}

void ModelVersion::end(FrontReplica& replica) { scheduler_.remove(replica, Clock::now()); }

}  // namespace flow
