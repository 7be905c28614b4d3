// Downloads blobs from one peer. Concurrent requests for a blob share one download, and the number
// of chunks in flight is limited. A ThreadPool hashes and writes chunks while the next ones arrive.
// The peer writes each chunk directly into memory that was announced to it (a put).
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/cluster/transfer/transfer_channel.hpp"

namespace flow::cluster {

/// Thread-safe. Owned by shared_ptrs.
class BlobDownloader : public std::enable_shared_from_this<BlobDownloader> {
 public:
  explicit BlobDownloader(std::shared_ptr<TransferChannel> channel)
      : channel_(std::move(channel)) {}

  /// Downloads a blob into the channel's cache. Calls `done` exactly once, with success or an
  /// error: before this function returns if the blob is in the cache or end() was called, else on
  /// a thread of the pool, on the thread that delivers the peer's messages, or on the thread that
  /// calls end(). No lock is held during the call, so `done` may call this object.
  void download(const BlobInfo& what, OnFetched done);
  /// These handle one message of the peer: the blob's size (an offer), that the peer lacks it, or
  /// the addresses of other peers to ask (a redirect). After a redirect the blob is downloaded from
  /// those; if that fails, from this peer, which may not redirect again. They return false if the
  /// message is malformed or was not expected; the caller then closes the channel.
  bool on_offer(const blob_protocol::Offer& offer);
  bool on_missing(const blob_protocol::Missing& missing);
  bool on_redirect(const blob_protocol::Redirect& redirect);
  /// Fails all present and later downloads with this error. Only the first call has an effect.
  void end(const Error& why);
  /// Whether an answer or a chunk of the peer is expected; if not, a silent peer is not at fault.
  bool awaits_peer();
  /// Whether there is no download, not even one whose chunks are being written.
  bool is_idle();

 private:
  struct Download;
  using DownloadPtr = std::shared_ptr<Download>;
  using Lock = std::unique_lock<std::mutex>;

  void start_queued();
  std::vector<DownloadPtr> start_queued_locked();
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
  /// Returns false if the download had finished already.
  bool end_download(const DownloadPtr& download, const Status& status, bool is_damaged);
  bool is_over(const DownloadPtr& download);
  void commit_when_complete(const DownloadPtr& download);  // the caller holds mutex_
  Error damaged(const Download& download) const;
  Error unsealed(const Download& download) const;

  const std::shared_ptr<TransferChannel> channel_;
  std::mutex mutex_;
  std::optional<Error> ended_;  // of the first call of end()
  // Queued and in progress; finish() removes them.
  std::unordered_map<Digest, DownloadPtr, DigestHash> downloads_;
  std::deque<DownloadPtr> queued_;
  std::map<uint64_t, DownloadPtr> requested_;  // requests to the peer, by id
  std::deque<DownloadPtr> receiving_;          // downloads with chunks left to request
  size_t active_ = 0;                          // downloads that have started
  size_t chunks_ = 0;                          // in memory: in flight, or not yet written
  uint64_t last_id_ = 0, last_tag_ = kBlobTags;
};

}  // namespace flow::cluster
