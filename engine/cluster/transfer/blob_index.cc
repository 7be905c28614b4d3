#include "engine/cluster/transfer/blob_index.hpp"

#include <algorithm>

namespace flow::cluster {

void BlobIndex::use(const Digest& digest, uint64_t size) {
  auto known = entries_.find(digest);
  insert(digest, {size, known == entries_.end() ? 0 : known->second.written_ns, ++last_use_});
}

void BlobIndex::add_written(const Digest& digest, uint64_t size, int64_t written_ns) {
  insert(digest, {size, written_ns, ++last_use_});
}

void BlobIndex::add_unused(const Digest& digest, uint64_t size) {
  insert(digest, {size, 0, --first_use_});
}

void BlobIndex::insert(const Digest& digest, Entry entry) {
  remove(digest);
  bytes_ += entry.size;
  by_use_.emplace(entry.used, digest);
  entries_.emplace(digest, entry);
}

void BlobIndex::remove(const Digest& digest) {
  auto found = entries_.find(digest);
  if (found == entries_.end()) return;
  bytes_ -= found->second.size;
  by_use_.erase(found->second.used);
  entries_.erase(found);
}

const BlobIndex::Entry* BlobIndex::find(const Digest& digest) const {
  auto found = entries_.find(digest);
  return found == entries_.end() ? nullptr : &found->second;
}

std::vector<std::pair<Digest, uint64_t>> BlobIndex::newest(uint64_t bytes_min,
                                                           size_t count_max) const {
  std::vector<std::pair<Digest, uint64_t>> found;
  for (auto each = by_use_.rbegin(); each != by_use_.rend() && found.size() < count_max; ++each) {
    uint64_t size = entries_.at(each->second).size;
    if (size >= bytes_min) found.emplace_back(each->second, size);
  }
  return found;
}

void BlobIndex::pin(const std::string& owner, const std::vector<Digest>& digests, int64_t now_ns) {
  Owner& own = owners_.try_emplace(owner, Owner{now_ns, {}, {}}).first->second;
  for (const Digest& digest : digests) {
    own.digests.push_back(digest);
    pins_[digest]++;
  }
}

void BlobIndex::lend(const std::string& owner, const Digest& digest, LentFile file,
                     int64_t now_ns) {
  pin(owner, {}, now_ns);
  std::vector<Lent>& files = lent_[digest];
  bool is_again = std::erase_if(files, [&](const Lent& each) { return each.first == owner; }) > 0;
  if (!is_again) owners_[owner].lent.push_back(digest);
  files.emplace_back(owner, std::move(file));
}

std::vector<BlobIndex::LentFile> BlobIndex::lent(const Digest& digest) const {
  std::vector<LentFile> files;
  auto found = lent_.find(digest);
  if (found == lent_.end()) return files;
  for (auto each = found->second.rbegin(); each != found->second.rend(); ++each)
    files.push_back(each->second);
  return files;
}

void BlobIndex::unpin(const std::string& owner) {
  auto found = owners_.find(owner);
  if (found == owners_.end()) return;
  for (const Digest& digest : found->second.digests) {
    auto pin = pins_.find(digest);
    if (--pin->second == 0) pins_.erase(pin);
  }
  for (const Digest& digest : found->second.lent) {
    auto files = lent_.find(digest);
    std::erase_if(files->second, [&](const Lent& each) { return each.first == owner; });
    if (files->second.empty()) lent_.erase(files);
  }
  owners_.erase(found);
}

std::vector<Digest> BlobIndex::pinned_by(const std::string& owner) const {
  auto found = owners_.find(owner);
  return found == owners_.end() ? std::vector<Digest>() : found->second.digests;
}

uint64_t BlobIndex::pinned_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [digest, count] : pins_) {
    auto entry = entries_.find(digest);
    if (entry != entries_.end()) bytes += entry->second.size;
  }
  return bytes;
}

int64_t BlobIndex::oldest_owner_ns() const {
  int64_t oldest = INT64_MAX;
  for (const auto& [name, owner] : owners_) oldest = std::min(oldest, owner.began_ns);
  return oldest;
}

const std::pair<const Digest, BlobIndex::Entry>* BlobIndex::next_unpinned(uint64_t used) const {
  for (auto each = by_use_.upper_bound(used); each != by_use_.end(); ++each) {
    if (!is_pinned(each->second)) return &*entries_.find(each->second);
  }
  return nullptr;
}

}  // namespace flow::cluster
