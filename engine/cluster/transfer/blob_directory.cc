#include "engine/cluster/transfer/blob_directory.hpp"

#include <algorithm>
#include <tuple>

namespace flow::cluster {

BlobDirectory::WorkerKey BlobDirectory::enter() {
  std::lock_guard lock(mutex_);
  workers_.try_emplace(++last_);
  return last_;
}

void BlobDirectory::join(WorkerKey worker, const std::string& name, const std::string& address) {
  std::lock_guard lock(mutex_);
  auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  found->second.name = name;
  found->second.address = address;
}

void BlobDirectory::leave(WorkerKey worker) {
  std::lock_guard lock(mutex_);
  auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  while (!found->second.fetches.empty()) end_fetch(worker, 0);
  for (const Digest& digest : std::exchange(found->second.has, {})) remove(worker, digest);
  workers_.erase(found);
}

void BlobDirectory::update(WorkerKey worker, const BlobInventoryDelta& delta) {
  std::lock_guard lock(mutex_);
  if (!workers_.contains(worker)) return;
  for (const Digest& digest : delta.removed) remove(worker, digest);
  for (const BlobInfo& blob : delta.added) hold(worker, blob);
  workers_.at(worker).traffic = delta.traffic;
}

void BlobDirectory::hold(WorkerKey worker, const BlobInfo& blob) {
  KnownWorker& known = workers_.at(worker);
  for (size_t i = known.fetches.size(); i-- > 0;)
    if (known.fetches[i].first == blob.digest) end_fetch(worker, i);
  if (!known.has.insert(blob.digest).second) return;
  auto [entry, is_new] = blobs_.try_emplace(blob.digest);
  entry->second.size = *blob.size;
  entry->second.holders.push_back(worker);
  if (is_new) {
    entry->second.used = ++last_;
    by_use_.emplace(last_, blob.digest);
  }
  holdings_++;
  while (holdings_ > kHoldingsMax) forget(Digest(by_use_.begin()->second));
}

void BlobDirectory::remove(WorkerKey worker, const Digest& digest) {
  workers_.at(worker).has.erase(digest);
  auto found = blobs_.find(digest);
  if (found == blobs_.end()) return;
  holdings_ -= std::erase(found->second.holders, worker);
  if (found->second.holders.empty()) forget(Digest(digest));
}

void BlobDirectory::forget(const Digest& digest) {
  auto found = blobs_.find(digest);
  for (WorkerKey worker : found->second.holders) workers_.at(worker).has.erase(digest);
  holdings_ -= found->second.holders.size();
  by_use_.erase(found->second.used);
  blobs_.erase(found);
}

void BlobDirectory::end_fetch(WorkerKey requester, size_t which) {
  auto& fetches = workers_.at(requester).fetches;
  WorkerKey worker = fetches[which].second;
  fetches.erase(fetches.begin() + static_cast<std::ptrdiff_t>(which));
  auto from = workers_.find(worker);
  if (from == workers_.end()) return;
  auto requesting = from->second.requesters.find(requester);
  if (--requesting->second == 0) from->second.requesters.erase(requesting);
}

Addresses BlobDirectory::locate(WorkerKey requester, const Digest& digest) {
  std::lock_guard lock(mutex_);
  auto found = blobs_.find(digest);
  auto requesting = workers_.find(requester);
  if (found == blobs_.end() || requesting == workers_.end()) return {};
  Entry& entry = found->second;
  by_use_.erase(std::exchange(entry.used, ++last_));
  by_use_.emplace(entry.used, digest);
  std::vector<WorkerKey> able;
  for (WorkerKey worker : entry.holders) {
    const KnownWorker& known = workers_.at(worker);
    bool has_time =
        known.requesters.size() < kDownloadsPerSourceMax || known.requesters.contains(requester);
    if (worker != requester && !known.address.empty() && has_time) able.push_back(worker);
  }
  if (able.empty()) return {};
  auto burden = [&](WorkerKey worker) {
    const KnownWorker& known = workers_.at(worker);
    return std::tuple(known.requesters.size(), known.redirected);
  };
  std::ranges::sort(able, {}, burden);
  able.resize(std::min(able.size(), kRedirectSourcesMax));
  KnownWorker& first = workers_.at(able.front());
  first.redirected = ++last_;
  // Failed downloads are not reported; there are never more than this many in progress.
  if (requesting->second.fetches.size() >= kDownloadsMax) end_fetch(requester, 0);
  first.requesters[requester]++;
  requesting->second.fetches.emplace_back(digest, able.front());
  Addresses addresses;
  for (WorkerKey worker : able) addresses.push_back(workers_.at(worker).address);
  return addresses;
}

BlobDirectory::ByteCounts BlobDirectory::bytes_of(const std::vector<BlobInfo>& blobs) const {
  std::lock_guard lock(mutex_);
  ByteCounts bytes;
  std::map<WorkerKey, uint64_t> at;
  for (const BlobInfo& blob : blobs) {
    auto found = blobs_.find(blob.digest);
    if (found == blobs_.end()) continue;
    bytes.all += found->second.size;
    for (WorkerKey worker : found->second.holders) at[worker] += found->second.size;
  }
  for (const auto& [worker, count] : at) bytes.at.emplace_back(workers_.at(worker).name, count);
  return bytes;
}

Traffic BlobDirectory::traffic_of(const std::string& name) const {
  std::lock_guard lock(mutex_);
  // The newest session of the worker.
  for (auto known = workers_.rbegin(); known != workers_.rend(); ++known)
    if (known->second.name == name) return known->second.traffic;
  return {};
}

}  // namespace flow::cluster
