// The agent's work with blobs: inputs of orders, outputs in reports, and the inventory for the
// head.
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/blobs/folder.hpp"
#include "engine/cluster/transfer/blob_paths.hpp"
#include "engine/cluster/worker/failed_scratch.hpp"
#include "engine/cluster/worker/worker_agent.hpp"
#include "engine/worker/slot.hpp"

namespace flow::cluster {

// Only JoinAccepted tells whether blobs are encrypted: nothing is downloaded before.
void WorkerAgent::fetch(const StagedOrderPtr& staged) {
  std::shared_ptr<BlobTransfer> transfer;
  {
    std::lock_guard lock(mutex_);
    if (is_accepted_) transfer = transfer_;
    staged->missing = staged->references.size();
  }
  if (!transfer) return;
  if (staged->references.empty()) return on_fetched(staged, transfer, {});
  for (const BlobReference& each : staged->references) {
    // An earlier attempt may have left it at its path.
    if (!each.file.empty()) (void)options_.store->adopt_placed(each.blob.digest, each.file);
    transfer->fetch(each.blob, [this, staged, transfer](const Status& status) {
      on_fetched(staged, transfer, status);
    });
  }
}

void WorkerAgent::on_fetched(const StagedOrderPtr& staged,
                             const std::shared_ptr<BlobTransfer>& from, const Status& status) {
  const RankId id = staged->order.rank_id();
  {
    std::lock_guard lock(mutex_);
    if (!status.ok() && !staged->problem) staged->problem = status.error();
    if (staged->missing > 0) staged->missing--;
    if (staged->missing > 0 || from != transfer_) return;
    auto found = staged_.find(id);
    if (found == staged_.end() || found->second != staged) return;  // it was stopped
    staged_.erase(found);
  }
  place(staged);
  if (staged->problem) return fail(id, staged->problem->message);
  begin(staged);
}

// Other ranks of its gang may request the checkpoint from here on.
void WorkerAgent::place(const StagedOrderPtr& staged) {
  BlobCache& store = *options_.store;
  for (const BlobReference& each : staged->references) {
    if (each.file.empty()) continue;
    if (!staged->problem) {
      auto placed = place_checkpoint(store, each);
      if (!placed.ok()) staged->problem = placed.error();
      store.lend(owner_of(staged->order.rank_id()), each.blob.digest, store.dir() + "/" + each.file,
                 false);
    }
    store.was_placed(each.blob.digest);
  }
}

// Removes the placed checkpoints of orders that will not begin.
void WorkerAgent::unplace(const std::vector<StagedOrderPtr>& all) {
  for (const StagedOrderPtr& staged : all) {
    for (const BlobReference& each : staged->references)
      if (!each.file.empty()) options_.store->was_placed(each.blob.digest);
  }
}

namespace {

bool reports_full_disk(const std::string& text) {
  return text.find(std::strerror(ENOSPC)) != std::string::npos ||
         text.find(std::strerror(EDQUOT)) != std::string::npos;
}

/// Whether the failure's text contains the system's message for a full disk, from an executor or
/// from a command's stderr.
bool reports_full_disk(const core::Failure& failure) {
  return reports_full_disk(failure.message) || reports_full_disk(failure.evidence);
}

}  // namespace

std::string WorkerAgent::scratch_dir() const {
  return (std::filesystem::path(options_.spool_dir).parent_path() / "scratch").string();
}

bool WorkerAgent::holds_folder(const std::string& run, const std::string& name,
                               bool until_acked) const {
  auto attempt = attempt_of_folder(name);
  if (!attempt) return true;  // not an attempt's
  auto [unit, number] = *attempt;
  std::lock_guard lock(mutex_);
  for (auto at = attempts_.lower_bound({{run, unit, number, 0}, 0}); at != attempts_.end(); ++at) {
    const core::AttemptId& id = at->first.attempt;
    if (id.run != run || id.unit != unit || id.attempt != number) return false;
    if (until_acked || at->second == 0) return true;
  }
  return false;
}

// The folder of the newest failed attempt is kept for inspection until its space is needed.
void WorkerAgent::trim_scratch_later(const core::AttemptId& newest, bool is_disk_full) {
  thread_pool_.post([this, newest, kept = is_disk_full ? 0 : kFailedScratchKept] {
    auto is_in_use = [&](const std::string& run, const std::string& name) {
      bool is_newest =
          run == newest.run && attempt_of_folder(name) == std::pair(newest.unit, newest.attempt);
      return is_newest || holds_folder(run, name, true);
    };
    trim_failed_scratch(scratch_dir(), is_in_use, kept);
  });
}

bool WorkerAgent::needs_disk_space() const {
  {
    std::lock_guard lock(mutex_);
    if (freeing_disk_ > 0) return true;
    if (!may_have_scratch_) return false;
    if (has_filled_disk_) return true;
  }
  return is_disk_low(scratch_dir());
}

// An attempt that has ended no longer needs its folder, even if the head has not acknowledged its
// end.
void WorkerAgent::free_disk_for(const RankId& id) {
  {
    std::lock_guard lock(mutex_);
    freeing_disk_++;
  }
  thread_pool_.post([this, id] {
    bool keeps_none = false;
    {
      std::lock_guard lock(mutex_);
      keeps_none = std::exchange(has_filled_disk_, false);
      may_have_scratch_ = false;
    }
    bool is_any_in_use = false;  // perhaps by another rank of an attempt that has failed
    auto is_in_use = [&](const std::string& run, const std::string& name) {
      bool is_held = holds_folder(run, name, false);
      is_any_in_use = is_any_in_use || is_held;
      return is_held;
    };
    bool is_left =
        trim_failed_scratch(scratch_dir(), is_in_use, keeps_none ? 0 : kFailedScratchKept);
    if (StagedOrderPtr staged = end_disk_wait(id)) fetch(staged);
    std::lock_guard lock(mutex_);
    may_have_scratch_ = may_have_scratch_ || is_left || is_any_in_use;
    has_filled_disk_ = has_filled_disk_ || (keeps_none && is_any_in_use);
    freeing_disk_--;
    disk_freed_.notify_all();
  });
}

WorkerAgent::StagedOrderPtr WorkerAgent::end_disk_wait(const RankId& id) {
  std::lock_guard lock(mutex_);
  auto found = staged_.find(id);
  if (found == staged_.end() || !found->second->awaits_disk_space) return nullptr;
  found->second->awaits_disk_space = false;
  return is_accepted_ ? found->second : nullptr;
}

// A failed staging may mean that a blob on this disk is damaged (blobs are not synced), or that the
// disk is full. Check both.
void WorkerAgent::handle_failures(const std::vector<Report>& reports) {
  for (const Report& report : reports) {
    const auto* finished = report.as<TaskFinished>();
    if (finished == nullptr || finished->outcome != TaskFinished::Outcome::failed) continue;
    bool is_disk_full = reports_full_disk(finished->failure);
    {
      std::lock_guard lock(mutex_);
      may_have_scratch_ = true;
      has_filled_disk_ = has_filled_disk_ || is_disk_full;
    }
    trim_scratch_later(report.id, is_disk_full);
    if (finished->failure.cause != core::Cause::staging) continue;
    auto inputs = options_.store->pinned_by(owner_of(report.rank_id()));
    thread_pool_.post([store = options_.store, inputs, is_disk_full] {
      for (const Digest& digest : inputs) store->drop_if_damaged(digest);
      if (is_disk_full) store->evict_unpinned();
    });
  }
}

bool WorkerAgent::runs_any_of(const core::RunId& run) const {
  auto first = attempts_.lower_bound({{run, 0, 0, 0}, 0});
  return first != attempts_.end() && first->first.attempt.run == run;
}

// The run's folder also holds incomplete files of killed executors.
void WorkerAgent::set_aside_run(const core::RunId& run) {
  if (!runs_any_of(run) && !placed_.has_of(run))
    remove_later(options_.store->set_aside("checkpoints/" + run));
}

void WorkerAgent::set_aside_runs() {
  std::vector<core::RunId> runs;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(options_.store->dir() + "/checkpoints", failed), end;
       !failed && at != end; at.increment(failed))
    runs.push_back(at->path().filename().string());
  for (const core::RunId& run : runs) set_aside_run(run);
}

bool WorkerAgent::on_forget(const core::RunId& run) {
  bool is_name = !run.empty() && run.find('/') == std::string::npos && run != "." && run != "..";
  if (!is_name) return false;
  // Orders that are still present own the bundles that they need.
  for (const Digest& unused : bundle_users_.forget(run)) bundles_.erase(unused);
  environments_.erase(run);
  std::lock_guard lock(mutex_);
  evict_later(replicas_.drop_run(run));
  std::erase_if(acked_ends_, [&](const RankId& rank) { return rank.attempt.run == run; });
  if (runs_any_of(run)) {
    ended_runs_.insert(run);
    return true;
  }
  placed_.forget(run);
  set_aside_run(run);
  return true;
}

void WorkerAgent::remove_later(const std::string& path) {
  if (path.empty()) return;
  thread_pool_.post([path] { (void)remove_tree(path); });
}

void WorkerAgent::evict_later(const std::vector<Digest>& digests) {
  for (const Digest& digest : digests)
    thread_pool_.post([store = options_.store, digest] { store->evict(digest); });
}

bool WorkerAgent::on_replica(const worker_protocol::Replica& replica) {
  Digest digest;
  core::AttemptId of = attempt_id(replica.id());
  if (!Digest::from_bytes(replica.digest(), digest)) return false;
  {
    std::lock_guard lock(mutex_);
    if (!replicas_.should_fetch(of, digest)) return true;
  }
  fetch_replica(of, digest);
  return true;
}

void WorkerAgent::fetch_replica(const core::AttemptId& of, const Digest& digest) {
  std::shared_ptr<BlobTransfer> transfer;
  {
    std::lock_guard lock(mutex_);
    if (is_accepted_) transfer = transfer_;
  }
  auto on_end = [this, of, digest](const Status& status) {
    thread_pool_.post([this, of, digest, is_here = status.ok()] {
      CheckpointReplicas::NextStep next;
      {
        std::lock_guard lock(mutex_);
        next = replicas_.on_fetched(of, digest, is_here);
      }
      for (const Digest& gone : next.evict) options_.store->evict(gone);
      if (next.fetch) fetch_replica(of, *next.fetch);
    });
  };
  if (!transfer) return on_end(environment_error("no head has accepted this worker"));
  transfer->fetch({digest, std::nullopt}, on_end);
}

// Pins the blobs of a report until the head has acknowledged it.
void WorkerAgent::pin_reported_blobs(const Report& report) {
  auto references = referenced_blobs(report);
  if (!references.ok() || references->empty()) return;  // the head reports the error
  std::vector<Digest> digests;
  std::vector<BlobInfo> created;
  for (const BlobReference& each : *references) {
    if (!each.file.empty()) hold_checkpoint(report.rank_id(), each);
    if (!each.file.empty()) continue;
    digests.push_back(each.blob.digest);
    if (!each.origin.empty()) continue;
    created.push_back(each.blob);
    note_blob_added(each.blob);
  }
  options_.store->note_created(created);
  options_.store->pin(owner_of(report.rank_id()), digests);
  lend(*options_.store, report.rank_id(), *references);
}

void WorkerAgent::hold_checkpoint(const RankId& rank, const BlobReference& reference) {
  std::error_code failed;
  uint64_t size = std::filesystem::file_size(options_.store->dir() + "/" + reference.file, failed);
  note_blob_removed_locked(placed_.place(rank, {reference.blob.digest, reference.file}));
  if (!failed) note_blob_added({reference.blob.digest, size});
}

Traffic WorkerAgent::traffic() const {
  std::lock_guard lock(mutex_);
  return inventory_delta_.traffic;
}

void WorkerAgent::note_transfer(BlobVolume Traffic::*way, const BlobInfo& blob) {
  if (way != &Traffic::to_workers) arrived_.add(blob.digest, *blob.size);
  {
    std::lock_guard lock(mutex_);
    BlobVolume& volume = inventory_delta_.traffic.*way;
    volume.blobs++;
    volume.bytes += *blob.size;
    has_inventory_delta_ = true;
    if (way != &Traffic::to_workers) note_blob_added(blob);
  }
  progress();
}

// Requires the lock. Blobs that are not reported are downloaded from elsewhere.
void WorkerAgent::note_blob_added(const BlobInfo& blob) {
  if (!send_ || *blob.size < kLargeBytes || inventory_delta_.added.size() >= kInventoryDeltaMax)
    return;
  inventory_delta_.added.push_back(blob);
  has_inventory_delta_ = true;
}

void WorkerAgent::note_blob_removed(const Digest& digest) {
  {
    std::lock_guard lock(mutex_);
    if (!placed_.has(digest)) note_blob_removed_locked(digest);
  }
  progress();
}

void WorkerAgent::note_blob_removed_locked(const std::optional<Digest>& digest) {
  if (!digest || !send_ || inventory_delta_.removed.size() >= kInventoryDeltaMax) return;
  inventory_delta_.removed.push_back(*digest);
  has_inventory_delta_ = true;
}

}  // namespace flow::cluster
