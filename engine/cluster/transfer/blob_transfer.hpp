// Blob transfer over one session, in both directions at once. Callers decide what to download and
// from where. The messages are in protocol/blob.proto.
//
// A blob is requested, offered with its size, and then put chunk by chunk into memory that the
// receiver has posted: nothing arrives unrequested, the amount in flight is bounded, and frames are
// sent between puts. The blob appears under objects/ when it is complete, verified and, in a state,
// durable; before that no part of it does.
#pragma once
#include <memory>
#include <string_view>

#include "engine/cluster/transfer/blob_downloader.hpp"
#include "engine/cluster/transfer/blob_uploader.hpp"

namespace flow::cluster {

/// Progress of this side's downloads.
struct DownloadProgress {
  uint64_t responses = 0;    // grows with each answer and each put
  bool awaits_peer = false;  // an answer or a put of the peer is outstanding
  bool is_idle = true;       // no download is in progress
};

/// Thread-safe.
class BlobTransfer {
 public:
  explicit BlobTransfer(const TransferOptions& options);
  /// Ends the transfer.
  ~BlobTransfer();
  BlobTransfer(const BlobTransfer&) = delete;
  BlobTransfer& operator=(const BlobTransfer&) = delete;

  /// Downloads a blob unless it is present. A worker pins it first, so that it is not evicted.
  void fetch(const BlobInfo& what, OnFetched done) { downloader_->download(what, std::move(done)); }
  /// Handles a message of the peer's transfer. Returns false if it is invalid; the caller then ends
  /// the session. Does not block.
  bool on_message(std::string_view message);
  /// Fails all pending and later downloads with this error and stops uploads.
  void end(const Error& why);

  DownloadProgress progress() const;
  TransferCounters counters() const;

 private:
  const std::shared_ptr<TransferChannel> channel_;
  const std::shared_ptr<BlobDownloader> downloader_;
  const std::shared_ptr<BlobUploader> uploader_;
};

}  // namespace flow::cluster
