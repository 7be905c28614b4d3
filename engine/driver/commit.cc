// What turns decided becomes durable, on the turn's thread or beside it, and then what follows from
// it is done.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "engine/driver/driver.hpp"
#include "engine/store/keys.hpp"

namespace flow {

namespace {

constexpr size_t kOwnSyncMax = 4;               // records that are no work for another thread
constexpr uint64_t kJournalMin = 16 << 20;      // bytes of journal before a snapshot is worth it
constexpr uint64_t kRestJournalMin = 64 << 10;  // where no run is left

// What is open can be written on, and nobody would find it.
Error removed(const std::string& dir) {
  return environment_error(
      fmt::format("the state `{}` was removed or replaced while it was written. The engine stops "
                  "here: what its runs came to went with it. Start them again",
                  dir));
}

}  // namespace

void Driver::commit(bool may_leave) {
  bool is_due = is_snapshot_due();
  bool is_much = records_.size() > kOwnSyncMax || unsynced_ || computes_ahead_;
  bool leaves = may_leave && !is_due && (is_much || is_in_air());
  if (!leaves) land();
  bool is_idle = batch_.writes.empty() && records_.empty() && decided_.empty() && !unsynced_;
  if (is_idle && !is_due) {
    staged_.clear();
    return;
  }
  if (is_due) add_snapshot();
  bool writes = !batch_.writes.empty() || !records_.empty();
  durable_ = durable_ && writes;  // who only looked at the state waits for no disk
  bool durable = durable_ || unsynced_;
  uint64_t number = decided_.number;
  if (!leaves || computes_ahead_) stage_starts(number);
  Status written = write(durable && !leaves);
  bool waits = leaves && written.ok();
  unsynced_ = waits && durable;
  if (waits) {
    if (!is_in_air()) launch();
    stage_starts(number);  // while what was written is synced
    return;
  }
  Decided decided = std::exchange(decided_, {});
  decided_.number = number + 1;
  if (written.ok() && worker_) worker_->release(number);
  finish(std::move(decided), written);
}

/// Nothing of it is seen by anybody before it is synced.
Status Driver::write(bool sync) {
  if (!records_.empty()) {
    std::string bytes = encode_records(records_);
    journal_bytes_ += bytes.size();
    batch_.put(Family::journal, journal_key(records_.front().sequence), std::move(bytes));
  }
  if (durable_) failpoint("turn-before-commit");
  Status done;
  if (auto error = stopped_by()) {
    done = *error;
  } else if (lock_inode() != lock_inode_) {
    done = removed(options_.state_dir);
  } else if (!batch_.writes.empty()) {
    done = store_->commit(batch_, sync);
  } else if (sync) {
    done = store_->sync();
  }
  if (durable_) failpoint("turn-after-commit");
  batch_.writes.clear();
  records_.clear();
  staged_.clear();
  staged_cache_.clear();
  durable_ = false;
  if (log_cost_ > 0 && worker_) worker_->took_logs(std::exchange(log_cost_, 0));
  return done;
}

uint64_t Driver::lock_inode() const {
  struct stat info {};
  return ::stat((options_.state_dir + "/lock").c_str(), &info) == 0 ? info.st_ino : 0;
}

void Driver::launch() {
  land();
  flying_ = std::exchange(decided_, {});
  decided_.number = flying_.number + 1;
  unsynced_ = false;
  {
    std::lock_guard lock(mutex_);
    flight_ = Flight::in_air;
  }
  launched_.notify_one();
}

bool Driver::is_in_air() const {
  std::lock_guard lock(mutex_);
  return flight_ == Flight::in_air;
}

void Driver::land() {
  Status synced;
  {
    std::unique_lock lock(mutex_);
    if (flight_ == Flight::none) return;
    landed_.wait(lock, [this] { return flight_ == Flight::landed; });
    flight_ = Flight::none;
    synced = std::exchange(flight_ended_, {});
  }
  finish(std::exchange(flying_, {}), synced);
}

void Driver::sync_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    launched_.wait(lock, [this] { return flight_ == Flight::in_air || syncer_quits_; });
    if (flight_ != Flight::in_air) return;
    uint64_t number = flying_.number;
    lock.unlock();
    Status synced = store_->sync();
    lock.lock();
    // Before the release: what its orders report must find it landed.
    flight_ended_ = synced;
    flight_ = Flight::landed;
    lock.unlock();
    if (synced.ok()) worker_->release(number);
    landed_.notify_one();
    wake_.notify_all();
    lock.lock();
  }
}

void Driver::finish(Decided decided, const Status& committed) {
  if (!committed.ok()) {
    // Nobody saw anything of it: stop here, the next start repairs it.
    fail(committed.error());
    for (auto& [done, admitted] : decided.outcomes) done(false);
    return;
  }
  tell(std::move(decided.events));
  for (auto& [done, admitted] : decided.outcomes) done(admitted);
  perform(decided.acts);
}

bool Driver::is_snapshot_due() const {
  // A state that nothing goes on in has a snapshot of a few bytes.
  bool is_rest = state_.runs.empty() && journal_bytes_ > kRestJournalMin;
  return snapshot_due_ || is_rest || journal_bytes_ > std::max(kJournalMin, 2 * snapshot_bytes_);
}

/// What the snapshot holds need not be replayed, and this turn is part of it.
void Driver::add_snapshot() {
  std::string bytes = encode_snapshot(state_);
  snapshot_bytes_ = bytes.size();
  if (snapshot_sequence_ != 0) batch_.erase(Family::snapshots, journal_key(snapshot_sequence_));
  batch_.put(Family::snapshots, journal_key(state_.sequence), std::move(bytes));
  Status scanned =
      store_->scan(Family::journal, "", "", [&](std::string_view key, std::string_view) {
        batch_.erase(Family::journal, std::string(key));
        return true;
      });
  if (!scanned.ok()) fail(scanned.error());
  records_.clear();
  durable_ = true;
  snapshot_sequence_ = state_.sequence;
  journal_bytes_ = 0;
  snapshot_due_ = false;
}

}  // namespace flow
