#include "transports/collective/communicator_state.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "engine/base/clock.hpp"
#include "engine/base/spin_wait.hpp"

namespace flow::collective {
namespace {

constexpr int64_t kCheckUs = 20'000;  // interval of the check for dead ranks
constexpr int kSpins = 1'000;         // about 20 us, where each rank has a core

int cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout,
                   nullptr, 0);
}

std::string seconds_text(int64_t us) {
  return us < 10'000'000 ? fmt::format("{:.1f} s", static_cast<double>(us) / 1e6)
                         : fmt::format("{} s", us / 1'000'000);
}

}  // namespace

ProcessExit::ProcessExit(int pid)
    : descriptor_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

ProcessExit& ProcessExit::operator=(ProcessExit&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

ProcessExit::~ProcessExit() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool ProcessExit::has_exited() const {
  pollfd poll{descriptor_, POLLIN, 0};
  return descriptor_ >= 0 && ::poll(&poll, 1, 0) > 0;
}

CommunicatorState::CommunicatorState(const CommunicatorOptions& options,
                                     std::vector<LocalRank> local_ranks)
    : options_(options), deadline_ms_(options.deadline_ms), local_ranks_(std::move(local_ranks)) {
  for (size_t i = 0; i < local_ranks_.size(); i++)
    if (local_ranks_[i].rank == options_.rank) me_ = static_cast<int>(i);
  FLOW_CHECK(local_ranks_[static_cast<size_t>(me_)].rank == options_.rank);
  control_ = &local_ranks_[static_cast<size_t>(me_)].segment.control();
  spins_ = static_cast<int>(local_ranks_.size()) <= cores() ? kSpins : 1;
}

const LocalRank* CommunicatorState::local_rank(int rank) const {
  auto found = std::lower_bound(local_ranks_.begin(), local_ranks_.end(), rank,
                                [](const LocalRank& one, int other) { return one.rank < other; });
  return found != local_ranks_.end() && found->rank == rank ? &*found : nullptr;
}

bool CommunicatorState::join(int64_t deadline_ms) {
  if (has_failed()) return false;
  control_->state.store(RankState::joined, std::memory_order_seq_cst);
  for (const LocalRank& local_rank : local_ranks_) ring_doorbell(local_rank.segment.control());
  deadline_ms_ = deadline_ms;
  bool is_whole = wait([&] {
    for (const LocalRank& local_rank : local_ranks_)
      if (local_rank.segment.control().state.load(std::memory_order_seq_cst) == RankState::joining)
        return local_rank.rank;
    return -1;
  });
  deadline_ms_ = options_.deadline_ms;
  return is_whole;
}

void CommunicatorState::leave() {
  if (has_failed()) return;
  control_->state.store(RankState::left, std::memory_order_seq_cst);
  for (const LocalRank& local_rank : local_ranks_) ring_doorbell(local_rank.segment.control());
}

void CommunicatorState::enter_call(const CallSignature& call) {
  LastCall last_call(static_cast<Collective>(call.what), call.number, true);
  if (!has_failed() && !fail_with_local_rank())
    entered_.store(last_call.bits(), std::memory_order_relaxed);
  control_->last_call.store(last_call.bits(), std::memory_order_relaxed);
}

// A failure ends the wait of a rank before rank_progress() is asked for its position, so the call
// that the rank was in as the gang failed is kept.
void CommunicatorState::exit_call() {
  uint64_t outside = entered_.load(std::memory_order_relaxed) & ~uint64_t{1};
  if (!has_failed()) entered_.store(outside, std::memory_order_relaxed);
  control_->last_call.store(outside, std::memory_order_relaxed);
}

void CommunicatorState::await_message(const CollectiveCall* call) {
  if (has_failed()) return;
  uint32_t bits = call == nullptr
                      ? 0
                      : static_cast<uint32_t>(call->peer) << 8 | static_cast<uint32_t>(call->what);
  message_.store(bits, std::memory_order_relaxed);
}

void CommunicatorState::end() {
  control_->has_ended.store(1, std::memory_order_seq_cst);
  for (const LocalRank& local_rank : local_ranks_) ring_doorbell(local_rank.segment.control());
  if (on_end) on_end();
}

RankProgress CommunicatorState::rank_progress() const {
  RankProgress rank_progress = LastCall(entered_.load()).rank_progress();
  uint32_t bits = message_.load();
  if (bits == 0) return rank_progress;
  rank_progress.message = static_cast<Collective>(bits & 0xff);
  rank_progress.peer = static_cast<int>(bits >> 8);
  return rank_progress;
}

std::string CommunicatorState::call_text() const {
  if (uint32_t message = message_.load(); message != 0) {
    auto what = static_cast<Collective>(message & 0xff);
    return fmt::format("{} {} rank {}", collective_name(what),
                       what == Collective::send ? "to" : "from", message >> 8);
  }
  uint64_t bits = entered_.load(std::memory_order_relaxed);
  if (bits == 0) return "the gang";
  return fmt::format("{} #{}", collective_name(static_cast<Collective>((bits & 0xff) >> 1)),
                     bits >> 8);
}

void CommunicatorState::pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

void CommunicatorState::ring_doorbell(Control& control) {
  if (control.is_waiting.load(std::memory_order_seq_cst) == 0) return;
  control.doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex(control.doorbell, FUTEX_WAKE, 1, nullptr);
}

bool CommunicatorState::wait_long(int (*missing)(void*), void* context) {
  int64_t began_us = monotonic_us(), checked_us = began_us;
  while (true) {
    if (progress) progress();
    int rank = missing(context);
    if (rank < 0) {
      if (checked_us != began_us) clear_wait_edge();
      return true;
    }
    if (has_failed() || fail_with_local_rank()) return false;
    int64_t now_us = monotonic_us();
    if (now_us - began_us < kSpinUs) {
      spin_pause();
    } else if (now_us - checked_us >= kCheckUs) {
      checked_us = now_us;
      check_missing(missing, context, now_us - began_us);
    } else {
      sleep(missing, context);
    }
  }
}

/// A ring after `is_waiting` is set changes the doorbell, and data written before that ring is
/// visible here.
void CommunicatorState::sleep(int (*missing)(void*), void* context) {
  uint32_t seen = control_->doorbell.load(std::memory_order_seq_cst);
  control_->is_waiting.store(1, std::memory_order_seq_cst);
  if (progress) progress();
  if (missing(context) >= 0 && !has_failed()) {
    timespec most{0, kCheckUs * 1'000};
    futex(control_->doorbell, FUTEX_WAIT, seen, &most);
  }
  control_->is_waiting.store(0, std::memory_order_seq_cst);
}

bool CommunicatorState::fail_with_local_rank() {
  for (const LocalRank& local_rank : local_ranks_) {
    const Control& control = local_rank.segment.control();
    if (local_rank.rank == options_.rank || control.state.load() != RankState::failed) continue;
    size_t size = std::min<size_t>(control.cause_size.load(), kCauseBytes);
    auto kind = static_cast<ErrorKind>(
        std::min<uint32_t>(control.cause_kind.load(), static_cast<uint32_t>(ErrorKind::internal)));
    fail({kind, std::string(control.cause, size)});
    return true;
  }
  return false;
}

bool CommunicatorState::has_left(int rank) const {
  if (const LocalRank* local = this->local_rank(rank))
    return local->segment.control().state.load() == RankState::left;
  return remote_has_left && remote_has_left(rank);
}

void CommunicatorState::check_missing(int (*missing)(void*), void* context, int64_t waited_us) {
  check_for_dead_ranks();
  int rank = missing(context);
  if (rank < 0) return;
  if (has_left(rank)) {
    // Messages that the rank sent before it left have arrived by now.
    if (progress) progress();
    rank = missing(context);
    if (rank >= 0 && has_left(rank))
      fail(environment_error(fmt::format("rank {} has left and will not reach {}; {}", rank,
                                         call_text(), last_call_of(rank).text())));
  } else if (message_.load() != 0 && has_ended(rank)) {
    if (progress) progress();
    // The rest of a message that has begun is still arriving.
    if (missing(context) == rank && message_.load() != 0)
      fail(
          user_error(fmt::format("rank {} has ended, and rank {} waits in {}: each send "
                                 "needs its recv",
                                 rank, options_.rank, call_text())));
  } else if (deadline_ms_ > 0) {
    check_deadline(rank, waited_us);
  }
}

bool CommunicatorState::has_ended(int rank) const {
  if (const LocalRank* local = this->local_rank(rank))
    return local->segment.control().has_ended.load(std::memory_order_seq_cst) != 0;
  return remote_has_ended && remote_has_ended(rank);
}

/// If the missing rank itself waits for a third rank, that rank gets as long again to report it.
void CommunicatorState::check_deadline(int missing_rank, int64_t waited_us) {
  WaitForEdge wait_edge{LastCall(entered_.load()).number(), missing_rank,
                        WaitForEdge::In::collective};
  if (uint32_t message = message_.load(); message != 0) {
    bool is_send = static_cast<Collective>(message & 0xff) == Collective::send;
    wait_edge.in = is_send ? WaitForEdge::In::send : WaitForEdge::In::recv;
  }
  control_->wait_edge.store(wait_edge.bits());
  int64_t deadline_us = deadline_ms_ * 1'000;
  if (send_wait_edge && waited_us > deadline_us / 4) {
    send_wait_edge(wait_edge);
    has_sent_wait_edge_ = true;
  }
  if (waited_us < deadline_us) return;
  if (std::string cycle = deadlock_cycle_text(wait_edge); !cycle.empty())
    return fail({ErrorKind::task, std::move(cycle)});
  if (is_waiting_for_other(missing_rank) && waited_us < 2 * deadline_us) return;
  std::string late = fmt::format("has not reached {}", call_text());
  if (entered_.load() != 0 || message_.load() != 0) {
    std::vector<int> ranks = waiting();
    std::erase(ranks, missing_rank);
    late = fmt::format("hangs: it {}, in which {} wait{},", late, ranks_text(ranks),
                       ranks.size() == 1 ? "s" : "");
  }
  fail(
      {ErrorKind::task, fmt::format("rank {} {} for {}; {}", missing_rank, late,
                                    seconds_text(deadline_us), last_call_of(missing_rank).text())});
}

void CommunicatorState::clear_wait_edge() {
  control_->wait_edge.store(0);
  if (!has_sent_wait_edge_) return;
  has_sent_wait_edge_ = false;
  send_wait_edge({});
}

/// "ranks 0 and 1 wait for each other for 8.0 s: rank 0 in send to rank 1, rank 1 in recv from rank
/// 0", with the same text on every rank; "" if this rank is not part of such a cycle. Collectives
/// alone never form one: a rank stopped within a collective still reports a wait.
std::string CommunicatorState::deadlock_cycle_text(const WaitForEdge& own) const {
  constexpr size_t kNamedMax = 8;
  std::vector<std::pair<int, WaitForEdge>> cycle{{options_.rank, own}};
  while (cycle.back().second.rank != options_.rank) {
    int rank = cycle.back().second.rank;
    bool is_endless = cycle.size() == static_cast<size_t>(options_.ranks);
    if (rank < 0 || rank >= options_.ranks || is_endless) return "";
    cycle.emplace_back(rank, wait_edge_of(rank));
  }
  auto is_in = [](WaitForEdge::In in) {
    return [in](const auto& one) { return one.second.in == in; };
  };
  if (std::all_of(cycle.begin(), cycle.end(), is_in(WaitForEdge::In::collective))) return "";
  bool is_of_sends = std::all_of(cycle.begin(), cycle.end(), is_in(WaitForEdge::In::send));
  auto by_rank = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end(), by_rank), cycle.end());
  std::vector<int> ranks;
  std::string places;
  for (const auto& [rank, wait_edge] : cycle) {
    ranks.push_back(rank);
    if (ranks.size() > kNamedMax) continue;
    const char* in = wait_edge.in == WaitForEdge::In::send   ? "send to"
                     : wait_edge.in == WaitForEdge::In::recv ? "recv from"
                                                             : "a collective with";
    places += fmt::format("{}rank {} in {} rank {}", places.empty() ? "" : ", ", rank, in,
                          wait_edge.rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return fmt::format("{} wait for each other for {}: {}{}", ranks_text(ranks),
                     seconds_text(deadline_ms_ * 1'000), places,
                     is_of_sends ? ". Where all send first, make the sends async" : "");
}

/// The ranks in the call that this rank is in, as far as it knows.
std::vector<int> CommunicatorState::waiting() const {
  if (message_.load() != 0) return {options_.rank};
  LastCall own(entered_.load());
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.ranks; rank++) {
    bool is_there = rank == options_.rank;
    if (const LocalRank* local = this->local_rank(rank)) {
      LastCall last_call(local->segment.control().last_call.load());
      is_there = is_there || (last_call.is_inside() && last_call.number() == own.number());
    } else if (remote_wait_edge) {
      WaitForEdge theirs = remote_wait_edge(rank);
      is_there = theirs.rank >= 0 && theirs.number == own.number();
    }
    if (is_there) ranks.push_back(rank);
  }
  return ranks;
}

/// As far as it was reported to this rank.
WaitForEdge CommunicatorState::wait_edge_of(int rank) const {
  if (const LocalRank* local = this->local_rank(rank))
    return WaitForEdge::of(local->segment.control().wait_edge.load());
  return remote_wait_edge ? remote_wait_edge(rank) : WaitForEdge();
}

bool CommunicatorState::is_waiting_for_other(int rank) const {
  WaitForEdge theirs = wait_edge_of(rank);
  return theirs.rank >= 0 && theirs.rank != options_.rank;
}

void CommunicatorState::check_for_dead_ranks() {
  if (has_failed() || fail_with_local_rank()) return;
  for (const LocalRank& local_rank : local_ranks_) {
    if (!local_rank.exit.has_exited()) continue;
    // Its last report is read before its exit is.
    if (fail_with_local_rank()) return;
    if (local_rank.segment.control().state.load() == RankState::left) continue;
    return fail(
        environment_error(fmt::format("rank {}: its process {} has ended; {}", local_rank.rank,
                                      local_rank.pid, last_call_of(local_rank.rank).text())));
  }
}

LastCall CommunicatorState::last_call_of(int rank) const {
  if (const LocalRank* local = this->local_rank(rank))
    return LastCall(local->segment.control().last_call.load());
  return remote_last_call ? remote_last_call(rank) : LastCall();
}

void CommunicatorState::fail(const Error& cause) {
  {
    std::lock_guard lock(mutex_);
    if (has_failed_.load() || is_complete_) return;
    cause_ = cause;
    publish(cause);
    has_failed_.store(true, std::memory_order_seq_cst);
  }
  for (const LocalRank& local_rank : local_ranks_) ring_doorbell(local_rank.segment.control());
  if (on_fail) on_fail(cause);
}

void CommunicatorState::complete() {
  std::lock_guard lock(mutex_);
  is_complete_ = true;
}

void CommunicatorState::publish(const Error& cause) {
  size_t size = std::min(cause.message.size(), kCauseBytes);
  std::memcpy(control_->cause, cause.message.data(), size);
  control_->cause_size.store(static_cast<uint32_t>(size));
  control_->cause_kind.store(static_cast<uint32_t>(cause.kind));
  control_->state.store(RankState::failed, std::memory_order_seq_cst);
}

Error CommunicatorState::cause() const {
  std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace flow::collective
