#include "engine/cluster/worker/checkpoint_replicas.hpp"

#include <algorithm>
#include <filesystem>

namespace flow::cluster {

bool PlacedCheckpoints::has(const Digest& digest) const {
  return std::any_of(placed_.begin(), placed_.end(),
                     [&](const auto& each) { return each.second.digest == digest; });
}

bool PlacedCheckpoints::has_of(const core::RunId& run) const {
  return std::any_of(placed_.begin(), placed_.end(),
                     [&](const auto& each) { return each.first.attempt.run == run; });
}

void PlacedCheckpoints::forget(const core::RunId& run) {
  std::erase_if(placed_, [&](const auto& each) { return each.first.attempt.run == run; });
}

bool PlacedCheckpoints::is_used(const std::string& file) const {
  return std::any_of(placed_.begin(), placed_.end(),
                     [&](const auto& each) { return each.second.file == file; });
}

std::optional<Digest> PlacedCheckpoints::place(const RankId& rank, PlacedCheckpoint placed) {
  auto [own, is_first] = placed_.try_emplace(rank, placed);
  if (is_first) return std::nullopt;
  Digest before = std::exchange(own->second, std::move(placed)).digest;
  if (has(before)) return std::nullopt;
  return before;
}

PlacedCheckpoints::RemovedCheckpoint PlacedCheckpoints::end_rank(const RankId& rank, bool is_over) {
  auto own = placed_.find(rank);
  if (own == placed_.end()) return {};
  PlacedCheckpoint placed = std::move(own->second);
  placed_.erase(own);
  if (is_used(placed.file)) return {};
  bool is_kept = !is_over && store_->adopt_placed(placed.digest, placed.file);
  RemovedCheckpoint removed{placed.digest, std::nullopt, store_->set_aside(placed.file)};
  if (is_kept) removed.kept = placed.digest;
  if (is_kept || has(placed.digest)) removed.digest.reset();
  return removed;
}

std::vector<BlobInfo> PlacedCheckpoints::large() const {
  std::vector<BlobInfo> found;
  for (const auto& [rank, placed] : placed_) {
    std::error_code failed;
    uint64_t size = std::filesystem::file_size(store_->dir() + "/" + placed.file, failed);
    if (!failed && size >= kLargeBytes) found.push_back({placed.digest, size});
  }
  return found;
}

CheckpointReplicas::Replica& CheckpointReplicas::of_unit(const core::AttemptId& of) {
  bool is_full = all_.size() >= kMax && !all_.contains({of.run, of.unit});
  if (is_full) std::erase_if(all_, [](const auto& each) { return !each.second.is_fetching; });
  return all_[{of.run, of.unit}];
}

std::vector<Digest> CheckpointReplicas::keep(const core::AttemptId& of, const Digest& digest) {
  std::vector<Digest> before = std::exchange(of_unit(of).kept, {digest});
  std::erase(before, digest);
  return before;
}

bool CheckpointReplicas::should_fetch(const core::AttemptId& of, const Digest& digest) {
  Replica& replica = of_unit(of);
  replica.is_over = false;
  if (replica.is_fetching) replica.next = digest;
  return !std::exchange(replica.is_fetching, true);
}

CheckpointReplicas::NextStep CheckpointReplicas::on_fetched(const core::AttemptId& of,
                                                            const Digest& digest, bool is_here) {
  Replica& replica = all_.at({of.run, of.unit});
  NextStep next;
  if (is_here) next.evict = std::exchange(replica.kept, {digest});
  std::erase(next.evict, digest);
  if (!replica.is_over) next.fetch = std::exchange(replica.next, std::nullopt);
  replica.is_fetching = next.fetch.has_value();
  if (!replica.is_over) return next;
  for (const Digest& kept : drop(of)) next.evict.push_back(kept);
  return next;
}

std::vector<Digest> CheckpointReplicas::drop_run(const core::RunId& run) {
  std::vector<Digest> removed;
  for (auto each = all_.lower_bound({run, 0}); each != all_.end() && each->first.first == run;) {
    core::AttemptId of{run, each->first.second, 0, 0};
    ++each;
    for (const Digest& digest : drop(of)) removed.push_back(digest);
  }
  return removed;
}

std::vector<Digest> CheckpointReplicas::drop(const core::AttemptId& of) {
  auto found = all_.find({of.run, of.unit});
  if (found == all_.end()) return {};
  found->second.is_over = true;
  if (found->second.is_fetching) return {};
  std::vector<Digest> kept = std::move(found->second.kept);
  all_.erase(found);
  return kept;
}

}  // namespace flow::cluster
