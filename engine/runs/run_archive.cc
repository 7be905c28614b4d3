// Freezing and thawing runs by the snapshot codec, so that there is one encoding of a run.
#include "engine/runs/run_archive.hpp"

namespace flow {

namespace {
constexpr char kNamesBlob = '@';  // no snapshot begins with it
}

Result<std::string> freeze(const core::State& state, const core::Run& run, Blobs& blobs,
                           Batch& batch) {
  std::string bytes = encode_snapshot_of(state, run);
  if (bytes.size() <= kInlineBlobMax) return bytes;
  auto digest = blobs.put(bytes, batch);
  FLOW_TRY(digest);
  return kNamesBlob + std::string(digest->view());
}

std::optional<Digest> frozen_blob(std::string_view row) {
  Digest digest;
  bool names = row.starts_with(kNamesBlob) && Digest::from_bytes(row.substr(1), digest);
  return names ? std::optional(digest) : std::nullopt;
}

Result<core::State> thaw(std::string_view row, const Blobs& blobs) {
  std::string stored;
  if (auto digest = frozen_blob(row)) {
    auto bytes = blobs.get(*digest);
    FLOW_TRY(bytes);
    stored = std::move(*bytes);
    row = stored;
  }
  return decode_snapshot(row, find_plan_in(blobs), find_fragment_in(blobs));
}

}  // namespace flow
