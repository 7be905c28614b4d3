#include "engine/runtime/group_commit.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/failpoint.hpp"
#include "engine/core/mutants.hpp"
#include "engine/runtime/event_log.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

constexpr size_t kOwnSyncMax = 4;                // records that the turn's thread writes itself
constexpr size_t kOpenBatchMax = 2048;           // records that wait for the disk
constexpr size_t kOpenBatchBytesMax = 16 << 20;  // bytes of blobs that wait for the disk
constexpr uint64_t kJournalMin = 16 << 20;       // minimum bytes of journal for a snapshot
constexpr uint64_t kRestJournalMin = 64 << 10;   // the same if no run is left

// The open files could still be written, but nothing would find them again.
Error removed(const std::string& dir) {
  return environment_error(
      fmt::format("the state `{}` was removed or replaced while it was written. The engine stops: "
                  "the results of its runs are lost with it. Start them again",
                  dir));
}

}  // namespace

void DeferredWriter::start_thread() {
  thread_ = engine_thread([this] { run(); });
}

void DeferredWriter::quit() {
  {
    std::lock_guard lock(mutex_);
    is_quitting_ = true;
  }
  begun_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DeferredWriter::begin(uint64_t number) {
  {
    std::lock_guard lock(mutex_);
    number_ = number;
    phase_ = Phase::writing;
  }
  begun_.notify_one();
}

std::optional<Status> DeferredWriter::await() {
  if (is_idle()) return std::nullopt;
  write_here();
  std::unique_lock lock(mutex_);
  written_.wait(lock, [this] { return is_written(); });
  phase_ = Phase::idle;
  return std::exchange(status_, {});
}

bool DeferredWriter::write_here() {
  if (thread_.joinable() || !is_writing()) return false;
  write();
  return true;
}

void DeferredWriter::run() {
  // The thread that decides has priority over this one.
  sched_param none{};
  ::sched_setscheduler(0, SCHED_BATCH, &none);
  while (true) {
    {
      std::unique_lock lock(mutex_);
      begun_.wait(lock, [this] { return is_writing() || is_quitting_; });
      if (!is_writing()) return;
    }
    write();
  }
}

void DeferredWriter::write() {
  uint64_t number = number_;
  Status status = write_();
  {
    // Before `after`, which releases orders: their reports must find the write done.
    std::lock_guard lock(mutex_);
    status_ = status;
    phase_ = Phase::written;
  }
  after_(number, status);
  written_.notify_one();
}

GroupCommit::GroupCommit(Store& store, const core::State& state, Commits& commits, StopCause& stop,
                         CommitSteps& steps, EngineTelemetry& telemetry, std::string state_dir)
    : store_(store),
      state_(state),
      commits_(commits),
      stop_(stop),
      steps_(steps),
      telemetry_(telemetry),
      state_dir_(std::move(state_dir)),
      lock_inode_(lock_inode()),
      writer_([this] { return write(commits_.in_flight); },
              [this](uint64_t number, const Status& written) {
                if (written.ok()) steps_.release(number);
                steps_.on_written();
              }) {}

void GroupCommit::commit(bool may_defer) {
  Commit& open = commits_.open;
  bool is_due = is_snapshot_due();
  bool needs_writer = open.records.size() > kOwnSyncMax || steps_.has_speculative_start();
  bool is_deferred = may_defer && !is_due && (needs_writer || writer_.is_writing());
  if (!is_deferred) await();
  if (open.empty() && !is_due) {
    open.staged.clear();
    return;
  }
  if (is_due) add_snapshot();
  uint64_t number = open.number;
  // A speculative start computes at once. Other orders are made while the disk works.
  if (!is_deferred || steps_.has_speculative_start()) steps_.prefetch_orders(number);
  if (is_deferred) {
    // The turn waits here if the disk is too slow.
    bool is_full = open.records.size() > kOpenBatchMax || open.staged_bytes > kOpenBatchBytesMax;
    if (is_full || !writer_.is_writing()) begin_deferred();
    steps_.prefetch_orders(number);
    return;
  }
  Commit commit = take_open();
  Status written = write(commit);
  if (written.ok()) steps_.release(number);
  finish(std::move(commit), written);
}

Commit GroupCommit::take_open() {
  Commit commit = std::exchange(commits_.open, {});
  commits_.open.number = commit.number + 1;
  return commit;
}

// What must follow from a commit that is durable, done before it is written: faults of the tests.
void GroupCommit::act_early(Commit& commit) {
  using core::Mutant;
  if (core::has_mutant(Mutant::execute_before_commit))
    steps_.execute(std::exchange(commit.effects, {}));
  if (core::has_mutant(Mutant::release_before_commit)) steps_.release(commit.number);
  if (!core::has_mutant(Mutant::ack_before_durable)) return;
  for (auto& [outcome, admitted] : std::exchange(commit.outcomes, {})) outcome(admitted);
  for (const auto& effect : std::exchange(after_effects_, {})) effect();
}

// Nothing outside the engine and its executors sees the commit before this returns.
Status GroupCommit::write(Commit& commit) {
  act_early(commit);
  Batch& batch = commit.batch;
  if (!commit.records.empty()) {
    std::string bytes = encode_records(commit.records);
    commit.journal_bytes = bytes.size();
    batch.put(Family::journal, journal_key(commit.records.front().sequence), std::move(bytes));
  }
  if (batch.writes.empty()) commit.is_durable = false;  // the turn only read the state
  if (commit.is_durable) failpoint("turn-before-commit");
  Status done;
  if (auto error = stop_.get()) {
    done = *error;
  } else if (lock_inode() != lock_inode_) {
    done = removed(state_dir_);
  } else if (!batch.writes.empty()) {
    int64_t began_us = monotonic_us();
    done = store_.commit(std::move(batch), commit.is_durable);
    commit.write_us = monotonic_us() - began_us;
  }
  if (commit.is_durable) failpoint("turn-after-commit");
  if (commit.log_cost > 0) steps_.ack_logs(commit.log_cost);
  return done;
}

uint64_t GroupCommit::lock_inode() const {
  struct stat info {};
  return ::stat((state_dir_ + "/lock").c_str(), &info) == 0 ? info.st_ino : 0;
}

void GroupCommit::begin_deferred() {
  await();  // the last one, if it is still under way
  commits_.in_flight = take_open();
  writer_.begin(commits_.in_flight.number);
}

void GroupCommit::await() {
  if (auto written = writer_.await()) finish(std::exchange(commits_.in_flight, {}), *written);
}

bool GroupCommit::has_work() const {
  return writer_.is_written() || (writer_.is_idle() && !commits_.open.empty());
}

void GroupCommit::finish(Commit commit, const Status& written) {
  journal_.bytes += commit.journal_bytes;
  if (!written.ok()) {
    // Nothing of it was seen outside: stop here, and the next start repairs it.
    stop_.set(written.error());
    for (auto& [outcome, admitted] : commit.outcomes) outcome(false);
    return;
  }
  if (commit.is_durable) telemetry_.count_commit(commit.records.size(), commit.write_us);
  telemetry_.export_spans(std::move(commit.spans));
  write_lines(commit.log_lines);
  steps_.deliver(std::move(commit.events));
  for (auto& [outcome, admitted] : commit.outcomes) outcome(admitted);
  steps_.execute(commit.effects);
  for (const auto& effect : std::exchange(after_effects_, {})) effect();
}

bool GroupCommit::is_snapshot_due() const {
  // The snapshot of a state without runs has a few bytes.
  bool is_rest = state_.runs.empty() && journal_.bytes > kRestJournalMin;
  if (journal_.is_snapshot_requested || is_rest) return true;
  if (journal_.bytes <= kJournalMin) return false;
  // A snapshot of many units that have not ended yet would soon be followed by larger ones.
  return journal_.bytes > 2 * std::max(journal_.snapshot_bytes, expected_snapshot_bytes(state_));
}

// The snapshot includes this turn. Records that it covers are not replayed and leave the journal.
void GroupCommit::add_snapshot() {
  std::string bytes = encode_snapshot(state_);
  journal_.snapshot_bytes = bytes.size();
  Batch& batch = commits_.open.batch;
  if (journal_.snapshot_sequence != 0)
    batch.erase(Family::snapshots, journal_key(journal_.snapshot_sequence));
  batch.put(Family::snapshots, journal_key(state_.sequence), std::move(bytes));
  Status scanned =
      store_.scan(Family::journal, "", "", [&](std::string_view key, std::string_view) {
        batch.erase(Family::journal, std::string(key));
        return true;
      });
  if (!scanned.ok()) stop_.set(scanned.error());
  add_snapshot_line(state_.sequence, journal_.snapshot_bytes, commits_.open.log_lines);
  commits_.open.records.clear();
  commits_.open.is_durable = true;
  journal_.snapshot_sequence = state_.sequence;
  journal_.bytes = 0;
  journal_.is_snapshot_requested = false;
}

}  // namespace flow
