// What turns decided is written and becomes durable, on the turn's thread or beside it, and then
// what follows from it is done.
#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "engine/base/failpoint.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

constexpr size_t kOwnSyncMax = 4;                // records that are no work for another thread
constexpr size_t kOpenBatchMax = 2048;           // records that wait for the disk,
constexpr size_t kOpenBatchBytesMax = 16 << 20;  // or bytes of content
constexpr uint64_t kJournalMin = 16 << 20;       // bytes of journal before a snapshot is worth it
constexpr uint64_t kRestJournalMin = 64 << 10;   // where no run is left

// What is open can be written on, and nobody would find it.
Error removed(const std::string& dir) {
  return environment_error(
      fmt::format("the state `{}` was removed or replaced while it was written. The engine stops "
                  "here: what its runs came to went with it. Start them again",
                  dir));
}

}  // namespace

void EngineLoop::commit(bool may_defer) {
  bool is_due = is_snapshot_due();
  bool is_much = open_batch_.records.size() > kOwnSyncMax || has_speculative_start_;
  bool is_deferred = may_defer && !is_due && (is_much || is_commit_in_flight());
  if (!is_deferred) await_commit();
  if (open_batch_.empty() && !is_due) {
    open_batch_.staged.clear();
    return;
  }
  if (is_due) add_snapshot();
  uint64_t number = open_batch_.number;
  // What computes ahead has no reason to wait; other orders are made while the disk works.
  if (!is_deferred || has_speculative_start_) prefetch_orders(number);
  if (is_deferred) {
    // Who decides waits for who writes.
    bool is_full =
        open_batch_.records.size() > kOpenBatchMax || open_batch_.staged_bytes > kOpenBatchBytesMax;
    if (is_full || !is_commit_in_flight()) begin_commit();
    prefetch_orders(number);
    return;
  }
  Commit commit = take_open_batch();
  Status written = write(commit);
  if (written.ok() && worker_registry_.has_own()) worker_registry_.release(number);
  finish(std::move(commit), written);
}

EngineLoop::Commit EngineLoop::take_open_batch() {
  Commit commit = std::exchange(open_batch_, {});
  open_batch_.number = commit.number + 1;
  return commit;
}

/// Nothing of it is seen outside the engine and its executors before it is durable. On the turn's
/// thread, or on the writing one while turns go on.
Status EngineLoop::write(Commit& commit) {
  Batch& batch = commit.batch;
  if (!commit.records.empty()) {
    std::string bytes = encode_records(commit.records);
    commit.journal_bytes = bytes.size();
    batch.put(Family::journal, journal_key(commit.records.front().sequence), std::move(bytes));
  }
  if (batch.writes.empty()) commit.is_durable = false;  // who only looked at the state
  if (commit.is_durable) failpoint("turn-before-commit");
  Status done;
  if (auto error = stopped_by()) {
    done = *error;
  } else if (lock_inode() != lock_inode_) {
    done = removed(options_.state_dir);
  } else if (!batch.writes.empty()) {
    done = store_->commit(batch, commit.is_durable);
  }
  if (commit.is_durable) failpoint("turn-after-commit");
  if (commit.log_cost > 0 && worker_registry_.has_own()) worker_registry_.ack_logs(commit.log_cost);
  return done;
}

uint64_t EngineLoop::lock_inode() const {
  struct stat info {};
  return ::stat((options_.state_dir + "/lock").c_str(), &info) == 0 ? info.st_ino : 0;
}

void EngineLoop::begin_commit() {
  await_commit();  // the last one, where it is still under way
  in_flight_ = take_open_batch();
  {
    std::lock_guard lock(mutex_);
    commit_phase_ = CommitPhase::writing;
  }
  commit_begun_.notify_one();
}

bool EngineLoop::is_commit_in_flight() const {
  std::lock_guard lock(mutex_);
  return commit_phase_ == CommitPhase::writing;
}

void EngineLoop::await_commit() {
  Status written;
  {
    std::unique_lock lock(mutex_);
    if (commit_phase_ == CommitPhase::idle) return;
    commit_written_.wait(lock, [this] { return commit_phase_ == CommitPhase::written; });
    commit_phase_ = CommitPhase::idle;
    written = std::exchange(commit_status_, {});
  }
  finish(std::exchange(in_flight_, {}), written);
}

void EngineLoop::write_loop() {
  // Who decides is not pushed aside by who writes.
  sched_param none{};
  ::sched_setscheduler(0, SCHED_BATCH, &none);
  std::unique_lock lock(mutex_);
  while (true) {
    commit_begun_.wait(
        lock, [this] { return commit_phase_ == CommitPhase::writing || is_writer_quitting_; });
    if (commit_phase_ != CommitPhase::writing) return;
    lock.unlock();
    uint64_t number = in_flight_.number;
    Status written = write(in_flight_);
    lock.lock();
    // Before the release: what its orders report must find it landed.
    commit_status_ = written;
    commit_phase_ = CommitPhase::written;
    lock.unlock();
    if (written.ok()) worker_registry_.release(number);
    commit_written_.notify_one();
    wake_.notify_all();
    lock.lock();
  }
}

void EngineLoop::finish(Commit commit, const Status& written) {
  journal_bytes_ += commit.journal_bytes;
  if (!written.ok()) {
    // Nobody saw anything of it: stop here, the next start repairs it.
    fail(written.error());
    for (auto& [done, admitted] : commit.outcomes) done(false);
    return;
  }
  write_lines(commit.log_lines);
  notify_listeners(std::move(commit.events));
  for (auto& [done, admitted] : commit.outcomes) done(admitted);
  execute(commit.effects);
  for (const auto& effect : std::exchange(after_effects_, {})) effect();
}

bool EngineLoop::is_snapshot_due() const {
  // A state that nothing goes on in has a snapshot of a few bytes.
  bool is_rest = state_.runs.empty() && journal_bytes_ > kRestJournalMin;
  return snapshot_due_ || is_rest || journal_bytes_ > std::max(kJournalMin, 2 * snapshot_bytes_);
}

/// What the snapshot holds need not be replayed, and this turn is part of it.
void EngineLoop::add_snapshot() {
  std::string bytes = encode_snapshot(state_);
  snapshot_bytes_ = bytes.size();
  add_snapshot_line(state_.sequence, snapshot_bytes_, open_batch_.log_lines);
  Batch& batch = open_batch_.batch;
  if (snapshot_sequence_ != 0) batch.erase(Family::snapshots, journal_key(snapshot_sequence_));
  batch.put(Family::snapshots, journal_key(state_.sequence), std::move(bytes));
  Status scanned =
      store_->scan(Family::journal, "", "", [&](std::string_view key, std::string_view) {
        batch.erase(Family::journal, std::string(key));
        return true;
      });
  if (!scanned.ok()) fail(scanned.error());
  open_batch_.records.clear();
  open_batch_.is_durable = true;
  snapshot_sequence_ = state_.sequence;
  journal_bytes_ = 0;
  snapshot_due_ = false;
}

}  // namespace flow
