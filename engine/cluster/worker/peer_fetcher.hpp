// Blob transfer between the workers of a head: uploads blobs to peers and downloads blobs from the
// peers that the head names. Sessions are kept for a while. If a peer fails for any reason, the
// next one is tried, and finally the head: an error here costs only time.
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "engine/cluster/session/sessions.hpp"
#include "engine/cluster/transfer/blob_transfer.hpp"

namespace flow::cluster {

constexpr size_t kPeersMax = 64;  // concurrent peers

struct PeerFetcherOptions {
  std::shared_ptr<BlobCache> store;
  /// Called for each blob that was downloaded from a peer, or with `is_out` uploaded to one.
  std::function<void(bool is_out, const BlobInfo&)> on_transferred;
  /// As TransferOptions::encrypts.
  std::function<bool()> encrypts;
  int64_t stall_ms = 3'000;   // timeout for an answer or the next bytes
  int64_t idle_ms = 60'000;   // how long an unused session is kept
  int64_t avoid_ms = 30'000;  // how long a peer is avoided after it stalled or disconnected
};

/// Thread-safe.
class PeerBlobFetcher : public std::enable_shared_from_this<PeerBlobFetcher> {
 public:
  /// `sessions` and `thread_pool` outlive end().
  PeerBlobFetcher(Sessions& sessions, ThreadPool& thread_pool, PeerFetcherOptions options);
  ~PeerBlobFetcher();

  /// Starts to accept peers.
  Status listen(const std::string& address);
  /// The address for peers; "": none.
  std::string address() const;
  /// Downloads from the first source that has the blob.
  void fetch(const BlobInfo& blob, Addresses from, OnFetched done);
  /// Ends all uploads and downloads.
  void end();

 private:
  class PeerConnection;
  using PeerConnectionPtr = std::shared_ptr<PeerConnection>;
  struct PullRequest;
  void try_next(const std::shared_ptr<PullRequest>& request);
  Result<PeerConnectionPtr> connect_to(const std::string& address);
  std::shared_ptr<SessionUser> accept(const SessionPeer& peer,
                                      const std::shared_ptr<SessionLink>& link);
  void forget(const PeerConnectionPtr& connection, bool was_bad);
  void watch();

  Sessions& sessions_;
  ThreadPool& thread_pool_;
  const PeerFetcherOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool has_ended_ = false;
  std::unique_ptr<Listener> listener_;
  std::map<std::string, PeerConnectionPtr> outgoing_;  // by address, up to kPeersMax
  // Expired entries are removed at the next connection.
  std::map<std::string, int64_t> avoid_until_us_;
  std::set<PeerConnectionPtr> incoming_;  // they leave when their session ends
  std::thread watcher_;                   // started at the first download
};

}  // namespace flow::cluster
