// Archives and loads runs with the snapshot codec, so that there is only one encoding of a run.
#include "engine/runs/run_archive.hpp"

namespace flow {

namespace {
constexpr char kNamesBlob = '@';  // not the first byte of any snapshot
}

Result<std::string> archive_run(const core::State& state, const core::Run& run,
                                const Blobs& blobs) {
  std::string bytes;  // of a small one
  std::optional<Blobs::Writer> file;
  encode_snapshot_of(state, run, [&](std::string_view piece, size_t total) {
    if (total <= kInlineBlobMax) {
      bytes += piece;
    } else {
      if (!file) file.emplace(blobs);
      file->add(piece);
    }
  });
  if (!file) return bytes;
  auto digest = file->finish();
  FLOW_TRY(digest);
  return kNamesBlob + std::string(digest->view());
}

std::optional<Digest> archive_blob(std::string_view archive) {
  Digest digest;
  bool names = archive.starts_with(kNamesBlob) && Digest::from_bytes(archive.substr(1), digest);
  return names ? std::optional(digest) : std::nullopt;
}

Result<core::State> load_archived_run(std::string_view archive, const Blobs& blobs) {
  std::string stored;
  if (auto digest = archive_blob(archive)) {
    auto bytes = blobs.get(*digest);
    FLOW_TRY(bytes);
    stored = std::move(*bytes);
    archive = stored;
  }
  return decode_snapshot(archive, find_plan_in(blobs), find_fragment_in(blobs));
}

}  // namespace flow
