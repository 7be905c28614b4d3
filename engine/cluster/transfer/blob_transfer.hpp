// Content over one session, both ways at once: what either side lacks it fetches from the other.
// What to fetch and whom to ask is not decided here. protocol/blob.proto says what is said.
//
// A piece of content is asked for, offered with its size, and then put chunk by chunk into memory
// that who asked has made ready: so nothing comes that was not asked for, a bounded amount at a
// time, and frames go between the puts. It is under objects/ once it is whole, its digest is right,
// and it is durable; until then nothing of it is.
#pragma once
#include <memory>
#include <string_view>

#include "engine/cluster/transfer/blob_downloader.hpp"
#include "engine/cluster/transfer/blob_uploader.hpp"

namespace flow::cluster {

/// Of what this side fetches.
struct DownloadProgress {
  uint64_t responses = 0;    // grows with each answer and each put
  bool awaits_peer = false;  // the peer owes one
  bool is_idle = true;       // nothing is fetched
};

/// Thread-safe.
class BlobTransfer {
 public:
  explicit BlobTransfer(const TransferOptions& options);
  /// Ends it.
  ~BlobTransfer();
  BlobTransfer(const BlobTransfer&) = delete;
  BlobTransfer& operator=(const BlobTransfer&) = delete;

  /// What is here already is not fetched. A worker pins it first, so that it does not go again.
  void fetch(const BlobInfo& what, OnFetched done) { downloader_->download(what, std::move(done)); }
  /// What the peer's transfer sent. False where that is nothing it may send: the session is to end.
  /// Does not block.
  bool on_message(std::string_view message);
  /// Every fetch ends with this error, those to come too; nothing is served any more.
  void end(const Error& why);

  DownloadProgress progress() const;
  TransferCounters counters() const;

 private:
  const std::shared_ptr<TransferChannel> channel_;
  const std::shared_ptr<BlobDownloader> downloader_;
  const std::shared_ptr<BlobUploader> uploader_;
};

}  // namespace flow::cluster
