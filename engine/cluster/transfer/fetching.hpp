// One side's asking: content that it lacks comes from the peer, each piece once however many ask
// for it, and a bounded number of puts at a time. What comes is hashed and written beside each
// other, on threads of a ThreadPool, while the next of it is on its way.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/cluster/transfer/line.hpp"

namespace flow::cluster {

/// Thread-safe.
class BlobDownloader : public std::enable_shared_from_this<BlobDownloader> {
 public:
  explicit BlobDownloader(std::shared_ptr<TransferChannel> line) : line_(std::move(line)) {}

  void fetch(const BlobInfo& what, OnFetched done);
  /// What the peer says. False where that is nothing that it may say.
  bool on_offer(const blob_protocol::Offer& offer);
  bool on_missing(const blob_protocol::Missing& missing);
  bool on_elsewhere(const blob_protocol::Redirect& elsewhere);
  /// Every `done` that was not called is called with this, and so are later ones.
  void end(const Error& why);
  /// Whether the peer owes an answer or a put.
  bool awaits();
  bool is_idle();

 private:
  struct Download;
  using DownloadPtr = std::shared_ptr<Download>;
  using Lock = std::unique_lock<std::mutex>;

  void start_waiting();
  void look(const DownloadPtr& fetch);
  void ask(const DownloadPtr& fetch, bool anywhere);
  void receive(const DownloadPtr& fetch, uint64_t size);
  void ask_for_chunks();
  void expect(const DownloadPtr& fetch, const ChunkPtr& chunk);
  void on_put(const DownloadPtr& fetch, const ChunkPtr& chunk, const Result<size_t>& came);
  void take_in(const DownloadPtr& fetch, const ChunkPtr& chunk);
  void open_seal(const DownloadPtr& fetch, const ChunkPtr& chunk);
  void hash(const DownloadPtr& fetch, const ChunkPtr& chunk);
  void write(const DownloadPtr& fetch, const ChunkPtr& chunk);
  void let_go(const DownloadPtr& fetch, const ChunkPtr& chunk);
  void keep(const DownloadPtr& fetch);
  void finish(const DownloadPtr& fetch, const Status& status, bool is_damaged = false);
  bool is_over(const DownloadPtr& fetch);
  void keep_when_whole(const DownloadPtr& fetch);  // under the lock
  Error damaged(const Download& fetch) const;
  Error unsealed(const Download& fetch) const;

  const std::shared_ptr<TransferChannel> line_;
  std::mutex mutex_;
  std::optional<Error> ended_;  // set once
  // Fetches in progress: entries leave in finish().
  std::unordered_map<Digest, DownloadPtr, DigestHash> fetches_;
  std::deque<DownloadPtr> waiting_;
  std::map<uint64_t, DownloadPtr> asked_;  // of the peer, by number
  std::deque<DownloadPtr> receiving_;      // of which there is more to ask for
  size_t active_ = 0, chunks_ = 0;
  uint64_t last_id_ = 0, last_tag_ = kBlobTags;
};

}  // namespace flow::cluster
