#include "engine/cluster/transfer/blob_directory.hpp"

#include <algorithm>
#include <tuple>

namespace flow::cluster {

BlobDirectory::WorkerKey BlobDirectory::enter() {
  std::lock_guard lock(mutex_);
  nodes_.try_emplace(++last_);
  return last_;
}

void BlobDirectory::join(WorkerKey member, const std::string& name, const std::string& address) {
  std::lock_guard lock(mutex_);
  auto found = nodes_.find(member);
  if (found == nodes_.end()) return;
  found->second.name = name;
  found->second.address = address;
}

void BlobDirectory::leave(WorkerKey member) {
  std::lock_guard lock(mutex_);
  auto found = nodes_.find(member);
  if (found == nodes_.end()) return;
  while (!found->second.is_fetching.empty()) end_fetch(member, 0);
  for (const Digest& digest : std::exchange(found->second.has, {})) let_go(member, digest);
  nodes_.erase(found);
}

void BlobDirectory::take(WorkerKey member, const BlobInventoryDelta& news) {
  std::lock_guard lock(mutex_);
  if (!nodes_.contains(member)) return;
  for (const Digest& digest : news.removed) let_go(member, digest);
  for (const BlobInfo& blob : news.added) hold(member, blob);
  nodes_.at(member).traffic = news.traffic;
}

void BlobDirectory::hold(WorkerKey member, const BlobInfo& blob) {
  Node& node = nodes_.at(member);
  for (size_t i = node.is_fetching.size(); i-- > 0;)
    if (node.is_fetching[i].first == blob.digest) end_fetch(member, i);
  if (!node.has.insert(blob.digest).second) return;
  auto [entry, is_new] = contents_.try_emplace(blob.digest);
  entry->second.size = *blob.size;
  entry->second.holders.push_back(member);
  if (is_new) {
    entry->second.used = ++last_;
    by_use_.emplace(last_, blob.digest);
  }
  holdings_++;
  while (holdings_ > kHoldingsMax) forget(Digest(by_use_.begin()->second));
}

void BlobDirectory::let_go(WorkerKey member, const Digest& digest) {
  nodes_.at(member).has.erase(digest);
  auto found = contents_.find(digest);
  if (found == contents_.end()) return;
  holdings_ -= std::erase(found->second.holders, member);
  if (found->second.holders.empty()) forget(Digest(digest));
}

void BlobDirectory::forget(const Digest& digest) {
  auto found = contents_.find(digest);
  for (WorkerKey holder : found->second.holders) nodes_.at(holder).has.erase(digest);
  holdings_ -= found->second.holders.size();
  by_use_.erase(found->second.used);
  contents_.erase(found);
}

void BlobDirectory::end_fetch(WorkerKey asker, size_t which) {
  auto& fetches = nodes_.at(asker).is_fetching;
  WorkerKey holder = fetches[which].second;
  fetches.erase(fetches.begin() + static_cast<std::ptrdiff_t>(which));
  auto from = nodes_.find(holder);
  if (from == nodes_.end()) return;
  auto asking = from->second.askers.find(asker);
  if (--asking->second == 0) from->second.askers.erase(asking);
}

Addresses BlobDirectory::locate(WorkerKey asker, const Digest& digest) {
  std::lock_guard lock(mutex_);
  auto found = contents_.find(digest);
  auto asking = nodes_.find(asker);
  if (found == contents_.end() || asking == nodes_.end()) return {};
  Entry& entry = found->second;
  by_use_.erase(std::exchange(entry.used, ++last_));
  by_use_.emplace(entry.used, digest);
  std::vector<WorkerKey> able;
  for (WorkerKey member : entry.holders) {
    const Node& node = nodes_.at(member);
    bool has_time = node.askers.size() < kAskersMax || node.askers.contains(asker);
    if (member != asker && !node.address.empty() && has_time) able.push_back(member);
  }
  if (able.empty()) return {};
  auto burden = [&](WorkerKey member) {
    const Node& node = nodes_.at(member);
    return std::tuple(node.askers.size(), node.named);
  };
  std::ranges::sort(able, {}, burden);
  able.resize(std::min(able.size(), kNamedMax));
  Node& first = nodes_.at(able.front());
  first.named = ++last_;
  // One that came to nothing is not told of; more than these are never under way.
  if (asking->second.is_fetching.size() >= kDownloadsMax) end_fetch(asker, 0);
  first.askers[asker]++;
  asking->second.is_fetching.emplace_back(digest, able.front());
  Addresses addresses;
  for (WorkerKey member : able) addresses.push_back(nodes_.at(member).address);
  return addresses;
}

BlobDirectory::ByteCounts BlobDirectory::bytes_of(const std::vector<BlobInfo>& blobs) const {
  std::lock_guard lock(mutex_);
  ByteCounts bytes;
  std::map<WorkerKey, uint64_t> at;
  for (const BlobInfo& blob : blobs) {
    auto found = contents_.find(blob.digest);
    if (found == contents_.end()) continue;
    bytes.all += found->second.size;
    for (WorkerKey holder : found->second.holders) at[holder] += found->second.size;
  }
  for (const auto& [member, count] : at) bytes.at.emplace_back(nodes_.at(member).name, count);
  return bytes;
}

Traffic BlobDirectory::traffic_of(const std::string& name) const {
  std::lock_guard lock(mutex_);
  // The newest of its sessions.
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node)
    if (node->second.name == name) return node->second.traffic;
  return {};
}

}  // namespace flow::cluster
