// The downloading side of a transfer. Concurrent requests for a blob share one download, and the
// number of outstanding puts is bounded. Chunks are hashed and written concurrently on a ThreadPool
// while the next ones arrive.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/cluster/transfer/transfer_channel.hpp"

namespace flow::cluster {

/// Thread-safe.
class BlobDownloader : public std::enable_shared_from_this<BlobDownloader> {
 public:
  explicit BlobDownloader(std::shared_ptr<TransferChannel> channel)
      : channel_(std::move(channel)) {}

  void download(const BlobInfo& what, OnFetched done);
  /// Handle the peer's messages. Return false if the message is not valid in this state.
  bool on_offer(const blob_protocol::Offer& offer);
  bool on_missing(const blob_protocol::Missing& missing);
  bool on_redirect(const blob_protocol::Redirect& redirect);
  /// Fails all pending and later downloads with this error.
  void end(const Error& why);
  /// Whether an answer or a put of the peer is outstanding.
  bool awaits_peer();
  bool is_idle();

 private:
  struct Download;
  using DownloadPtr = std::shared_ptr<Download>;
  using Lock = std::unique_lock<std::mutex>;

  void start_waiting();
  std::vector<DownloadPtr> start_waiting_locked();
  void check_cache(const DownloadPtr& download);
  void request(const DownloadPtr& download, bool allow_redirect);
  void receive(const DownloadPtr& download, uint64_t size);
  void request_chunks();
  void expect(const DownloadPtr& download, const ChunkPtr& chunk);
  void on_put(const DownloadPtr& download, const ChunkPtr& chunk, const Result<size_t>& received);
  void process_chunk(const DownloadPtr& download, const ChunkPtr& chunk);
  void open_seal(const DownloadPtr& download, const ChunkPtr& chunk);
  void hash(const DownloadPtr& download, const ChunkPtr& chunk);
  void write(const DownloadPtr& download, const ChunkPtr& chunk);
  void release_chunk(const DownloadPtr& download, const ChunkPtr& chunk);
  void commit(const DownloadPtr& download);
  void finish(const DownloadPtr& download, const Status& status, bool is_damaged = false);
  /// Returns false if it was over already.
  bool end_download(const DownloadPtr& download, const Status& status, bool is_damaged);
  bool is_over(const DownloadPtr& download);
  void commit_when_complete(const DownloadPtr& download);  // under the lock
  Error damaged(const Download& download) const;
  Error unsealed(const Download& download) const;

  const std::shared_ptr<TransferChannel> channel_;
  std::mutex mutex_;
  std::optional<Error> ended_;  // set once
  // Downloads in progress; entries leave in finish().
  std::unordered_map<Digest, DownloadPtr, DigestHash> downloads_;
  std::deque<DownloadPtr> waiting_;
  std::map<uint64_t, DownloadPtr> requested_;  // requests to the peer, by number
  std::deque<DownloadPtr> receiving_;          // downloads with chunks left to request
  size_t active_ = 0, chunks_ = 0;
  uint64_t last_id_ = 0, last_tag_ = kBlobTags;
};

}  // namespace flow::cluster
