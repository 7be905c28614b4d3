#include "transports/nccl/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/engine_thread.hpp"
#include "engine/base/spin_wait.hpp"

namespace flow::nccl {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(200);  // of the watcher
constexpr auto kCpuCheckInterval =
    std::chrono::milliseconds(20);                      // interval of the check for dead ranks
constexpr auto kQueueLimit = std::chrono::seconds(60);  // connections are made at the first use

int type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return kFloat32;
    case DType::f16:
      return kFloat16;
    case DType::bf16:
      return kBfloat16;
    case DType::f64:
      return kFloat64;
    case DType::i64:
      return kInt64;
    case DType::i32:
      return kInt32;
    case DType::u8:
    case DType::boolean:
      return kUint8;
  }
  check_failed("a tensor's type", __FILE__, __LINE__);
}

int op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return kSum;
    case ReduceOp::mean:
      return kAvg;
    case ReduceOp::max:
      return kMax;
    case ReduceOp::min:
      return kMin;
  }
  check_failed("an operation", __FILE__, __LINE__);
}

}  // namespace

std::chrono::microseconds sleep_of(int number) {
  std::chrono::microseconds sleep = kSleepMin;
  for (int i = 0; i < number && sleep < kSleepMax; i++) sleep *= 2;
  return std::min(sleep, kSleepMax);
}

NcclWaits& nccl_waits() {
  static NcclWaits waits;
  return waits;
}

Code await_result(const NcclCalls& calls, NcclHandle handle, Clock::time_point until,
                  const std::function<bool()>& stops) {
  for (int tries = 0;; tries++) {
    Code state = kSuccess;
    Code queried = calls.get_async_error(handle, &state);
    if (queried != kSuccess) return queried;
    if (state != kInProgress) return state;
    if (tries < kSpins) {
      nccl_waits().spins++;
      spin_pause();
      continue;
    }
    if (Clock::now() >= until || (stops && stops())) return state;
    nccl_waits().sleeps++;
    std::this_thread::sleep_for(sleep_of(tries - kSpins));
  }
}

Error nccl_error(const NcclCalls& calls, int rank, Code code, const std::string& what) {
  return environment_error(
      fmt::format("rank {}: NCCL failed in {}: {}", rank, what, calls.error_string(code)));
}

bool NcclWork::is_done() const {
  std::lock_guard lock(mutex_);
  return is_done_;
}

Status NcclWork::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return is_done_; });
  return status_;
}

void NcclWork::finish(Status status) {
  std::lock_guard lock(mutex_);
  is_done_ = true;
  status_ = std::move(status);
  done_.notify_all();
}

NcclCommunicator::NcclCommunicator(const NcclOptions& options, NcclHandle handle)
    : options_(options), calls_(library().calls), handle_(handle) {
  watcher_ = engine_thread([this] { watch(); });
}

/// Aborts calls in flight. An idle communicator is finalized, or abandoned if that hangs because
/// its peers may be gone.
NcclCommunicator::~NcclCommunicator() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (!in_flight_.empty())
      fail_gang(environment_error(fmt::format("rank {} left with unfinished calls", rank())));
  }
  wake_.notify_all();
  watcher_.join();
  if (handle_ == nullptr) return;
  Code code = calls_.finalize(handle_);
  if (code == kInProgress)
    code = await_result(calls_, handle_, Clock::now() + std::chrono::seconds(5));
  if (code == kSuccess)
    calls_.destroy(handle_);
  else
    calls_.abort(handle_);
}

Status NcclCommunicator::check_call(const CollectiveCall& call) const {
  FLOW_TRY(check(call, rank(), ranks()));
  if (!call.is_device && call.what != Collective::barrier && call.what != Collective::leave)
    return user_error(
        fmt::format("{}: this gang's collectives run on GPUs, and the tensor is in "
                    "host memory: move it first",
                    collective_text(call)));
  return state_;
}

std::shared_ptr<CollectiveWork> NcclCommunicator::start(const CollectiveCall& call) {
  return start_all({call}).front();
}

std::vector<std::shared_ptr<CollectiveWork>> NcclCommunicator::start_all(
    const std::vector<CollectiveCall>& calls) {
  std::vector<std::shared_ptr<CollectiveWork>> works;
  std::vector<const CollectiveCall*> queued;
  PendingLaunch launch;
  std::lock_guard lock(mutex_);
  for (const CollectiveCall& call : calls) {
    auto work = std::make_shared<NcclWork>();
    works.push_back(work);
    if (Status checked = check_call(call); !checked.ok()) {
      work->finish(checked);
      continue;
    }
    number_++;
    if (queued.empty()) launch.text = fmt::format("{} (#{})", collective_text(call), number_);
    queued.push_back(&call);
    launch.works.push_back(work);
  }
  if (queued.empty()) return works;
  if (queued.size() > 1) launch.text += fmt::format(" and {} more", queued.size() - 1);
  Status failed = queue(queued, launch.text);
  if (failed.ok()) {
    auto mark = options_.stream->mark();
    if (mark.ok()) launch.mark = *mark;
    if (!mark.ok()) failed = mark.error();
  }
  if (!failed.ok()) {
    fail_gang(failed.error());
    for (const auto& work : launch.works) work->finish(state_);
    return works;
  }
  launch.until = options_.deadline_ms > 0
                     ? Clock::now() + std::chrono::milliseconds(options_.deadline_ms)
                     : Clock::time_point::max();
  in_flight_.push_back(std::move(launch));
  wake_.notify_all();
  return works;
}

Status NcclCommunicator::queue(const std::vector<const CollectiveCall*>& calls,
                               const std::string& text) {
  FLOW_TRY(options_.stream->select());
  return await_queued(calls.size() == 1 ? call_nccl(*calls.front()) : call_group(calls), text);
}

/// The first error ends the communicator, so that the rest of the group need not be queued.
Code NcclCommunicator::call_group(const std::vector<const CollectiveCall*>& calls) {
  Code first = calls_.group_start();
  if (first != kSuccess) return first;
  for (const CollectiveCall* call : calls) {
    Code code = call_nccl(*call);
    if (code != kSuccess && code != kInProgress) first = code;
    if (first != kSuccess) break;
  }
  Code ended = calls_.group_end();
  return first != kSuccess ? first : ended;
}

Status NcclCommunicator::await_queued(Code code, const std::string& text) {
  if (code == kInProgress)
    code =
        await_result(calls_, handle_, Clock::now() + kQueueLimit, [this] { return is_ending(); });
  if (code == kSuccess) return {};
  if (code == kInProgress)
    return environment_error(
        fmt::format("rank {}: NCCL has not taken {} for {} s", rank(), text, kQueueLimit.count()));
  return nccl_error(calls_, rank(), code, text);
}

Code NcclCommunicator::call_nccl(const CollectiveCall& call) {
  auto count = static_cast<size_t>(call.count);
  int type = type_of(call.dtype), op = op_of(call.op);
  void* stream = options_.stream->handle();
  switch (call.what) {
    case Collective::all_reduce:
      return calls_.all_reduce(call.from, call.to, count, type, op, handle_, stream);
    case Collective::reduce_scatter:
      return calls_.reduce_scatter(call.from, call.to, count, type, op, handle_, stream);
    case Collective::all_gather:
      return calls_.all_gather(call.from, call.to, count, type, handle_, stream);
    case Collective::broadcast:
      return calls_.broadcast(call.to, call.to, count, type, call.peer, handle_, stream);
    case Collective::all_to_all:
      return exchange_all(call, type);
    case Collective::barrier:
    case Collective::leave: {
      void* scratch = options_.stream->scratch();
      return calls_.all_reduce(scratch, scratch, 1, kInt32, kMax, handle_, stream);
    }
    case Collective::send:
      return calls_.send(call.from, count, type, call.peer, handle_, stream);
    case Collective::recv:
      return calls_.recv(call.to, count, type, call.peer, handle_, stream);
  }
  check_failed("a collective", __FILE__, __LINE__);
}

/// One group: NCCL sends and receives at the same time within it. In place it would read data that
/// it has overwritten.
Code NcclCommunicator::exchange_all(const CollectiveCall& call, int type) {
  auto count = static_cast<size_t>(call.count);
  size_t bytes = payload_bytes(call);
  void* stream = options_.stream->handle();
  Code first = calls_.group_start();
  if (first != kSuccess) return first;
  for (int peer = 0; peer < ranks(); peer++) {
    size_t at = static_cast<size_t>(peer) * bytes;
    Code sent =
        calls_.send(static_cast<const char*>(call.from) + at, count, type, peer, handle_, stream);
    Code received =
        calls_.recv(static_cast<char*>(call.to) + at, count, type, peer, handle_, stream);
    for (Code code : {sent, received})
      if (first == kSuccess && code != kInProgress) first = code;
  }
  Code ended = calls_.group_end();
  return first != kSuccess ? first : ended;
}

/// Waits while a call is being queued on the stream.
Status NcclCommunicator::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

/// Does not wait for a call that NCCL does not accept.
void NcclCommunicator::abort(const std::string& reason) {
  {
    std::lock_guard lock(abort_mutex_);
    if (!is_aborting_)
      aborted_ = environment_error(fmt::format("rank {} ended the gang: {}", rank(), reason));
    is_aborting_ = true;
  }
  std::lock_guard lock(mutex_);
  fail(aborted_);
}

bool NcclCommunicator::is_ending() const {
  return is_aborting_ || (options_.cpu_communicator && !options_.cpu_communicator->state().ok());
}

/// NCCL's message about a dead rank has less detail than the CPU communicator's.
void NcclCommunicator::fail_gang(const Error& cause) {
  Status others = options_.cpu_communicator ? options_.cpu_communicator->state() : Status();
  fail(others.ok() ? cause : others.error());
  if (options_.cpu_communicator) options_.cpu_communicator->abort(state_.error().message);
}

void NcclCommunicator::check_cpu_communicator() {
  if (!options_.cpu_communicator || Clock::now() < cpu_checked_at_ + kCpuCheckInterval) return;
  cpu_checked_at_ = Clock::now();
  if (Status others = options_.cpu_communicator->state(); !others.ok()) fail(others.error());
}

/// Completes the abort of NCCL's operations here, with the one cause.
void NcclCommunicator::fail(const Error& cause) {
  if (!state_.ok()) return;
  state_ = is_aborting_ ? aborted_ : cause;
  if (handle_ != nullptr) calls_.abort(handle_);
  handle_ = nullptr;
  for (PendingLaunch& pending : in_flight_) {
    options_.stream->forget(pending.mark);
    for (const auto& work : pending.works) work->finish(state_);
  }
  in_flight_.clear();
}

void NcclCommunicator::check_in_flight() {
  Code state = kSuccess;
  Code queried = calls_.get_async_error(handle_, &state);
  if (queried != kSuccess) state = queried;
  if (state != kSuccess && state != kInProgress)
    return fail_gang(nccl_error(calls_, rank(), state, in_flight_.front().text));
  while (!in_flight_.empty()) {
    PendingLaunch& first = in_flight_.front();
    auto passed = options_.stream->has_passed(first.mark);
    if (!passed.ok()) return fail_gang(passed.error());
    if (!*passed) break;
    options_.stream->forget(first.mark);
    for (const auto& work : first.works) work->finish({});
    in_flight_.pop_front();
  }
  if (in_flight_.empty()) return;
  if (Clock::now() < in_flight_.front().until) return check_cpu_communicator();
  fail_gang(environment_error(
      fmt::format("rank {}: {} has not ended for {} ms on its GPU: a rank has not "
                  "reached it, or hangs",
                  rank(), in_flight_.front().text, options_.deadline_ms)));
}

void NcclCommunicator::watch() {
  Status selected = options_.stream->select();
  std::unique_lock lock(mutex_);
  if (!selected.ok()) fail_gang(selected.error());
  while (!stopping_) {
    if (in_flight_.empty()) {
      wake_.wait(lock, [this] { return stopping_ || !in_flight_.empty(); });
      continue;
    }
    check_in_flight();
    wake_.wait_for(lock, kPollInterval, [this] { return stopping_; });
  }
}

std::string NcclCommunicator::description() const {
  return fmt::format("{} ranks by {}", ranks(), version_text(library().version));
}

Result<std::unique_ptr<Communicator>> NcclCommunicator::shrink(const std::vector<int>& without) {
  std::lock_guard lock(mutex_);
  if (calls_.shrink == nullptr)
    return environment_error(
        fmt::format("{} cannot continue with fewer ranks: 2.27 is the first that "
                    "can",
                    version_text(library().version)));
  if (!state_.ok()) return state_.error();
  std::vector<int> lost_ranks = without;
  auto before =
      std::count_if(lost_ranks.begin(), lost_ranks.end(), [this](int one) { return one < rank(); });
  NcclOptions options = options_;
  options.rank -= static_cast<int>(before);
  options.ranks -= static_cast<int>(lost_ranks.size());
  FLOW_TRY(options_.stream->select());
  Config config = config_of(options_.gang.c_str());
  NcclHandle fewer = nullptr;
  auto until = Clock::now() + std::chrono::milliseconds(options_.join_ms);
  Code code = calls_.shrink(handle_, lost_ranks.data(), static_cast<int>(lost_ranks.size()), &fewer,
                            &config, kShrinkAbort);
  // The old communicator reports on the call, the new one on itself.
  if (code == kInProgress)
    code = await_result(calls_, handle_, until, [this] { return is_ending(); });
  if (code == kSuccess && fewer != nullptr)
    code = await_result(calls_, fewer, until, [this] { return is_ending(); });
  fail(environment_error(fmt::format("rank {} continued with fewer ranks", rank())));
  if (code == kSuccess && fewer != nullptr)
    return std::unique_ptr<Communicator>(std::make_unique<NcclCommunicator>(options, fewer));
  if (fewer != nullptr) calls_.abort(fewer);
  if (code == kInProgress || code == kSuccess)
    return environment_error(
        fmt::format("rank {}: NCCL has not created a communicator of fewer ranks in {} ms", rank(),
                    options_.join_ms));
  return nccl_error(calls_, rank(), code, "continuing with fewer ranks");
}

}  // namespace flow::nccl
