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

#include "engine/base/awake.hpp"
#include "engine/base/clock.hpp"

namespace flow::collective {
namespace {

constexpr int64_t kLookUs = 20'000;  // how often it is seen who has died
constexpr int kSpins = 1'000;        // some 20 us, where each rank has a core

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

ProcessEnd::ProcessEnd(int pid)
    : descriptor_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

ProcessEnd& ProcessEnd::operator=(ProcessEnd&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

ProcessEnd::~ProcessEnd() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool ProcessEnd::has_come() const {
  pollfd poll{descriptor_, POLLIN, 0};
  return descriptor_ >= 0 && ::poll(&poll, 1, 0) > 0;
}

Core::Core(const CoreOptions& options, std::vector<Member> members)
    : options_(options), deadline_ms_(options.deadline_ms), members_(std::move(members)) {
  for (size_t i = 0; i < members_.size(); i++)
    if (members_[i].rank == options_.rank) me_ = static_cast<int>(i);
  FLOW_CHECK(members_[static_cast<size_t>(me_)].rank == options_.rank);
  control_ = &members_[static_cast<size_t>(me_)].segment.control();
  spins_ = static_cast<int>(members_.size()) <= cores() ? kSpins : 1;
}

const Member* Core::member(int rank) const {
  auto found = std::lower_bound(members_.begin(), members_.end(), rank,
                                [](const Member& one, int other) { return one.rank < other; });
  return found != members_.end() && found->rank == rank ? &*found : nullptr;
}

bool Core::join(int64_t deadline_ms) {
  if (has_failed()) return false;
  control_->state.store(RankState::joined, std::memory_order_seq_cst);
  for (const Member& member : members_) ring(member.segment.control());
  deadline_ms_ = deadline_ms;
  bool is_whole = wait([&] {
    for (const Member& member : members_)
      if (member.segment.control().state.load(std::memory_order_seq_cst) == RankState::joining)
        return member.rank;
    return -1;
  });
  deadline_ms_ = options_.deadline_ms;
  return is_whole;
}

void Core::part() {
  if (has_failed()) return;
  control_->state.store(RankState::left, std::memory_order_seq_cst);
  for (const Member& member : members_) ring(member.segment.control());
}

void Core::enter(const Signature& call) {
  Record record(static_cast<Collective>(call.what), call.number, true);
  if (!has_failed() && !take_failures()) entered_.store(record.bits(), std::memory_order_relaxed);
  control_->record.store(record.bits(), std::memory_order_relaxed);
}

// A failure ends the wait of a rank, and only then the rank is asked where it waited. So standing()
// keeps the call that the rank was in as the gang failed.
void Core::leave() {
  uint64_t outside = entered_.load(std::memory_order_relaxed) & ~uint64_t{1};
  if (!has_failed()) entered_.store(outside, std::memory_order_relaxed);
  control_->record.store(outside, std::memory_order_relaxed);
}

void Core::await_message(const CollectiveCall* call) {
  if (has_failed()) return;
  uint32_t bits = call == nullptr
                      ? 0
                      : static_cast<uint32_t>(call->peer) << 8 | static_cast<uint32_t>(call->what);
  message_.store(bits, std::memory_order_relaxed);
}

void Core::end() {
  control_->has_ended.store(1, std::memory_order_seq_cst);
  for (const Member& member : members_) ring(member.segment.control());
  if (on_end) on_end();
}

RankProgress Core::rank_progress() const {
  RankProgress rank_progress = Record(entered_.load()).rank_progress();
  uint32_t bits = message_.load();
  if (bits == 0) return rank_progress;
  rank_progress.message = static_cast<Collective>(bits & 0xff);
  rank_progress.peer = static_cast<int>(bits >> 8);
  return rank_progress;
}

std::string Core::call_text() const {
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

void Core::pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

void Core::ring(Control& control) {
  if (control.is_asleep.load(std::memory_order_seq_cst) == 0) return;
  control.bell.fetch_add(1, std::memory_order_seq_cst);
  futex(control.bell, FUTEX_WAKE, 1, nullptr);
}

bool Core::wait_long(int (*missing)(void*), void* context) {
  int64_t began_us = monotonic_us(), looked_us = began_us;
  while (true) {
    if (pump) pump();
    int rank = missing(context);
    if (rank < 0) {
      if (looked_us != began_us) wait_no_more();
      return true;
    }
    if (has_failed() || take_failures()) return false;
    int64_t now_us = monotonic_us();
    if (now_us - began_us < kAwakeUs) {
      pause_awake();
    } else if (now_us - looked_us >= kLookUs) {
      looked_us = now_us;
      look(missing, context, now_us - began_us);
    } else {
      sleep(missing, context);
    }
  }
}

/// What rings after `is_asleep` is set changes the bell, and what was written before is seen here.
void Core::sleep(int (*missing)(void*), void* context) {
  uint32_t heard = control_->bell.load(std::memory_order_seq_cst);
  control_->is_asleep.store(1, std::memory_order_seq_cst);
  if (pump) pump();
  if (missing(context) >= 0 && !has_failed()) {
    timespec most{0, kLookUs * 1'000};
    futex(control_->bell, FUTEX_WAIT, heard, &most);
  }
  control_->is_asleep.store(0, std::memory_order_seq_cst);
}

bool Core::take_failures() {
  for (const Member& member : members_) {
    const Control& control = member.segment.control();
    if (member.rank == options_.rank || control.state.load() != RankState::failed) continue;
    size_t size = std::min<size_t>(control.cause_size.load(), kCauseBytes);
    auto kind = static_cast<ErrorKind>(
        std::min<uint32_t>(control.cause_kind.load(), static_cast<uint32_t>(ErrorKind::internal)));
    fail({kind, std::string(control.cause, size)});
    return true;
  }
  return false;
}

bool Core::has_left(int rank) const {
  if (const Member* member = this->member(rank))
    return member->segment.control().state.load() == RankState::left;
  return other_has_left && other_has_left(rank);
}

void Core::look(int (*missing)(void*), void* context, int64_t waited_us) {
  look_for_dead();
  int rank = missing(context);
  if (rank < 0) return;
  if (has_left(rank)) {
    // What it sent before it left is there by now.
    if (pump) pump();
    rank = missing(context);
    if (rank >= 0 && has_left(rank))
      fail(environment_error(fmt::format("rank {} has left and does not come to {}; {}", rank,
                                         call_text(), record_of(rank).text())));
  } else if (message_.load() != 0 && has_ended(rank)) {
    if (pump) pump();
    // Of a message that has begun the rest is on its way.
    if (missing(context) == rank && message_.load() != 0)
      fail(
          user_error(fmt::format("rank {} has come to its end, and rank {} waits in {}: each send "
                                 "needs its recv",
                                 rank, options_.rank, call_text())));
  } else if (deadline_ms_ > 0) {
    look_at_time(rank, waited_us);
  }
}

bool Core::has_ended(int rank) const {
  if (const Member* member = this->member(rank))
    return member->segment.control().has_ended.load(std::memory_order_seq_cst) != 0;
  return other_has_ended && other_has_ended(rank);
}

/// Whoever waits for one that itself waits for a third leaves it to that one to name it, for as
/// long again.
void Core::look_at_time(int missing_rank, int64_t waited_us) {
  Waits waits{Record(entered_.load()).number(), missing_rank, Waits::In::collective};
  if (uint32_t message = message_.load(); message != 0) {
    bool is_send = static_cast<Collective>(message & 0xff) == Collective::send;
    waits.in = is_send ? Waits::In::send : Waits::In::recv;
  }
  control_->waits.store(waits.bits());
  int64_t deadline_us = deadline_ms_ * 1'000;
  if (tell_waits && waited_us > deadline_us / 4) {
    tell_waits(waits);
    has_told_waits_ = true;
  }
  if (waited_us < deadline_us) return;
  if (std::string circle = circle_text(waits); !circle.empty())
    return fail({ErrorKind::task, std::move(circle)});
  if (waits_itself(missing_rank) && waited_us < 2 * deadline_us) return;
  std::string late = fmt::format("has not come to {}", call_text());
  if (entered_.load() != 0 || message_.load() != 0) {
    std::vector<int> ranks = waiting();
    std::erase(ranks, missing_rank);
    late = fmt::format("hangs: it {}, in which {} wait{},", late, ranks_text(ranks),
                       ranks.size() == 1 ? "s" : "");
  }
  fail({ErrorKind::task, fmt::format("rank {} {} for {}; {}", missing_rank, late,
                                     seconds_text(deadline_us), record_of(missing_rank).text())});
}

void Core::wait_no_more() {
  control_->waits.store(0);
  if (!has_told_waits_) return;
  has_told_waits_ = false;
  tell_waits({});
}

/// "ranks 0 and 1 wait for each other for 8.0 s: rank 0 in send to rank 1, rank 1 in recv from rank
/// 0", the same on each of them; "" where this rank waits in no such circle. One of collectives
/// alone is none: who was stopped within one still says that it waits.
std::string Core::circle_text(const Waits& own) const {
  constexpr size_t kNamedMax = 8;
  std::vector<std::pair<int, Waits>> circle{{options_.rank, own}};
  while (circle.back().second.rank != options_.rank) {
    int rank = circle.back().second.rank;
    bool is_endless = circle.size() == static_cast<size_t>(options_.ranks);
    if (rank < 0 || rank >= options_.ranks || is_endless) return "";
    circle.emplace_back(rank, waits_of(rank));
  }
  auto is_in = [](Waits::In in) { return [in](const auto& one) { return one.second.in == in; }; };
  if (std::all_of(circle.begin(), circle.end(), is_in(Waits::In::collective))) return "";
  bool is_of_sends = std::all_of(circle.begin(), circle.end(), is_in(Waits::In::send));
  auto by_rank = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::rotate(circle.begin(), std::min_element(circle.begin(), circle.end(), by_rank),
              circle.end());
  std::vector<int> ranks;
  std::string places;
  for (const auto& [rank, waits] : circle) {
    ranks.push_back(rank);
    if (ranks.size() > kNamedMax) continue;
    const char* in = waits.in == Waits::In::send   ? "send to"
                     : waits.in == Waits::In::recv ? "recv from"
                                                   : "a collective with";
    places +=
        fmt::format("{}rank {} in {} rank {}", places.empty() ? "" : ", ", rank, in, waits.rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return fmt::format("{} wait for each other for {}: {}{}", ranks_text(ranks),
                     seconds_text(deadline_ms_ * 1'000), places,
                     is_of_sends ? ". Where all send first, make the sends async" : "");
}

/// Who is in the call that this rank is in, as far as it knows.
std::vector<int> Core::waiting() const {
  if (message_.load() != 0) return {options_.rank};
  Record own(entered_.load());
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.ranks; rank++) {
    bool is_there = rank == options_.rank;
    if (const Member* member = this->member(rank)) {
      Record record(member->segment.control().record.load());
      is_there = is_there || (record.is_inside() && record.number() == own.number());
    } else if (waits_of_other) {
      Waits theirs = waits_of_other(rank);
      is_there = theirs.rank >= 0 && theirs.number == own.number();
    }
    if (is_there) ranks.push_back(rank);
  }
  return ranks;
}

/// As far as this rank was told.
Waits Core::waits_of(int rank) const {
  if (const Member* member = this->member(rank))
    return Waits::of(member->segment.control().waits.load());
  return waits_of_other ? waits_of_other(rank) : Waits();
}

bool Core::waits_itself(int rank) const {
  Waits theirs = waits_of(rank);
  return theirs.rank >= 0 && theirs.rank != options_.rank;
}

void Core::look_for_dead() {
  if (has_failed() || take_failures()) return;
  for (const Member& member : members_) {
    if (!member.end.has_come()) continue;
    // What it said before it went comes first.
    if (take_failures()) return;
    if (member.segment.control().state.load() == RankState::left) continue;
    return fail(environment_error(fmt::format("rank {}: its process {} has ended; {}", member.rank,
                                              member.pid, record_of(member.rank).text())));
  }
}

Record Core::record_of(int rank) const {
  if (const Member* member = this->member(rank))
    return Record(member->segment.control().record.load());
  return record_of_other ? record_of_other(rank) : Record();
}

void Core::fail(const Error& cause) {
  {
    std::lock_guard lock(mutex_);
    if (has_failed_.load() || is_complete_) return;
    cause_ = cause;
    publish(cause);
    has_failed_.store(true, std::memory_order_seq_cst);
  }
  for (const Member& member : members_) ring(member.segment.control());
  if (on_fail) on_fail(cause);
}

void Core::complete() {
  std::lock_guard lock(mutex_);
  is_complete_ = true;
}

void Core::publish(const Error& cause) {
  size_t size = std::min(cause.message.size(), kCauseBytes);
  std::memcpy(control_->cause, cause.message.data(), size);
  control_->cause_size.store(static_cast<uint32_t>(size));
  control_->cause_kind.store(static_cast<uint32_t>(cause.kind));
  control_->state.store(RankState::failed, std::memory_order_seq_cst);
}

Error Core::cause() const {
  std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace flow::collective
