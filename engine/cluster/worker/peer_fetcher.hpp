// What a worker has to do with the others of its head: gives them content that it holds, and gets
// from them what the head says they hold. A session with one that is asked is kept for a while.
// What one of them does not give, for whatever reason, the next is asked for, and in the end the
// head: so all that goes wrong here costs time alone.
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

constexpr size_t kPeersMax = 64;  // asked at a time

struct PeerFetcherOptions {
  std::shared_ptr<BlobCache> store;
  /// Told of each piece of content that a fellow gave, or with `is_out` was given.
  std::function<void(bool is_out, const BlobInfo&)> on_transferred;
  /// As TransferOptions::encrypts.
  std::function<bool()> encrypts;
  int64_t stall_ms = 3'000;   // an answer or the next bytes are waited for
  int64_t idle_ms = 60'000;   // a session of which nothing is wanted is kept
  int64_t avoid_ms = 30'000;  // nobody is asked who did not answer, or broke off
};

/// Thread-safe.
class PeerBlobFetcher : public std::enable_shared_from_this<PeerBlobFetcher> {
 public:
  /// `sessions` and `thread_pool` outlive end().
  PeerBlobFetcher(Sessions& sessions, ThreadPool& thread_pool, PeerFetcherOptions options);
  ~PeerBlobFetcher();

  /// Fellows may ask for content there from now on.
  Status listen(const std::string& address);
  /// Where that is; "" nowhere.
  std::string address() const;
  /// From the first of these that gives it.
  void fetch(const BlobInfo& blob, Addresses from, OnFetched done);
  /// Nothing is given or fetched any more.
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
  std::map<std::string, int64_t>
      avoid_until_us_;                    // until when; later they leave with the next talk
  std::set<PeerConnectionPtr> incoming_;  // they leave when their session ends
  std::thread watcher_;                   // from the first that is asked on
};

}  // namespace flow::cluster
