#include "engine/runtime/turn_blobs.hpp"

#include <algorithm>
#include <utility>

namespace flow {

void TurnBlobs::stage(const Digest& digest, std::string bytes) {
  Commit& open = commits_.open;
  auto [place, is_new] = open.staged.try_emplace(digest, std::move(bytes));
  const std::string& staged = place->second;
  if (is_new) open.staged_bytes += staged.size();
  if (staged.size() <= kInlineBlobMax && is_new) {
    open.batch.put(Family::blobs, std::string(digest.view()), staged);
  } else if (is_new) {
    auto put = stored_.put(staged, open.batch);
    if (!put.ok()) stop_.set(put.error());
  }
}

const std::string* TurnBlobs::staged(const Digest& digest) const {
  for (const Commit* commit : {&commits_.open, &commits_.in_flight}) {
    auto found = commit->staged.find(digest);
    if (found != commit->staged.end()) return &found->second;
  }
  return nullptr;
}

Result<std::string> TurnBlobs::read(const Digest& digest) const {
  if (const std::string* bytes = staged(digest)) return *bytes;
  auto bytes = stored_.get(digest);
  if (!bytes.ok() && !keeps_damaged_ && stored_.drop_if_damaged(digest)) {
    return environment_error(
        bytes.error().message +
        ". It was removed: the next `flow run`, or `flow resume` of a run that "
        "failed, computes it again");
  }
  return bytes;
}

std::shared_ptr<const PlanFragment> TurnBlobs::fragment(const Digest& digest) const {
  auto bytes = read(digest);
  if (!bytes.ok()) return nullptr;
  auto decoded = decode_fragment(*bytes);
  if (!decoded.ok()) return nullptr;
  return std::make_shared<const PlanFragment>(std::move(*decoded));
}

bool TurnBlobs::has_all(const References& needed) const {
  if (!needed.unread().empty()) return false;
  return std::ranges::all_of(needed.blobs(), [this](const auto& each) {
    const auto& [digest, blob] = each;
    if (blob.is_in_place || staged(digest) != nullptr) return true;
    return blob.size ? stored_.has(digest, *blob.size) : stored_.has(digest);
  });
}

bool TurnBlobs::is_missing_any(const References& needed) const {
  bool is_lost = std::ranges::any_of(
      needed.unread(), [this](const Digest& digest) { return stored_.check_unread(digest).ok(); });
  return is_lost || std::ranges::any_of(needed.blobs(), [this](const auto& each) {
           const auto& [digest, blob] = each;
           return !blob.is_in_place && staged(digest) == nullptr &&
                  stored_.is_gone(digest, blob.size);
         });
}

bool TurnBlobs::holds_result_of(const CacheEntry& entry) const {
  bool is_gone = entry.is_file && !(entry.size > 0 ? stored_.has(entry.result, entry.size)
                                                   : stored_.has(entry.result));
  if (is_gone) return false;
  if (!entry.refers_to_blobs && !entry.has_fragment) return true;
  References needed([this](const Digest& digest) { return read(digest); });
  needed.add(entry);
  return has_all(needed);
}

}  // namespace flow
