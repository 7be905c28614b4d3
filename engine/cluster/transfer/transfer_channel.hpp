// The session as the two roles of a transfer see it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/thread_pool.hpp"
#include "engine/cluster/transfer/blob_cache.hpp"
#include "engine/crypto/seal.hpp"
#include "engine/protocol/blob.pb.h"
#include "flow/transport.hpp"

namespace flow::cluster {

constexpr size_t kChunkBytes = size_t{1} << 20;  // per put
/// Maximum number of outstanding chunks over all downloads, so that chunks in flight and in
/// processing stay in a processor's cache.
constexpr size_t kChunksMax = 6;
constexpr size_t kDownloadsMax = 16;  // concurrent downloads; further ones wait
/// First tag of blob receives; each tag is used once per session.
constexpr uint64_t kBlobTags = uint64_t{0xc0} << 56;
constexpr uint64_t kBlobBytesMax = uint64_t{1} << 60;
/// Maximum number of waiting transfer jobs. Beyond it no transfer starts: downloads fail, and
/// requests of the peer get an error. Transfers that have started may exceed it by some jobs each.
constexpr size_t kTransferJobsMax = size_t{1} << 20;
constexpr size_t kTextBytesMax = 4096;  // of a path or a reason in a message
static_assert(kChunkBytes + kBulkSealBytes <= kPutBytesMax);

/// Statistics for users.
struct TransferCounters {
  uint64_t bytes_in = 0, bytes_out = 0;  // of all puts
  uint64_t fetched = 0, found = 0;       // downloaded blobs, and blobs that were already present
  // Failed downloads; blobs that the peer received completely.
  uint64_t failed = 0, served = 0;
};

/// Called once, on any thread: success means that the blob is under objects/, verified and, in a
/// state, durable. It must not block.
using OnFetched = std::function<void(Status)>;
using Addresses = std::vector<std::string>;
constexpr size_t kAddressesMax = 8, kAddressBytesMax = 300;

/// Of a pool that reads, writes and hashes. No callback of a link may do so.
inline ThreadPoolOptions transfer_threads(size_t threads_max) {
  return {.name = "flow-transfer",
          .threads_max = threads_max,
          .queue_max = kTransferJobsMax,
          .is_batch = true};
}

struct TransferOptions {
  std::shared_ptr<BlobCache> store;
  ThreadPool* thread_pool = nullptr;  // must outlive the transfer
  std::shared_ptr<Link> link;         // the session's link, for puts
  /// Sends a message to the peer's transfer, sealed and in order, as part of a session message.
  /// Thread-safe, does not block. May be called while the transfer is being destroyed, so it must
  /// own what it uses.
  std::function<void(std::string_view message)> send;
  std::string peer;              // for messages: "node `w1` at 10.0.0.7:41"
  std::optional<BulkSeal> seal;  // the session's
  /// Whether puts are encrypted, and must be; may change; called on any thread. Null: puts are
  /// authenticated but not encrypted.
  std::function<bool()> encrypts;
  /// Other sources for a blob, if the peer accepts a redirect and should not download from here.
  /// Any thread.
  std::function<Addresses(const Digest&)> locate;
  /// Downloads from one of the sources in a redirect; null: redirects are not accepted. A failed
  /// download falls back to the peer.
  std::function<void(const BlobInfo&, Addresses, OnFetched)> follow_redirect;
  /// Called for each blob that was downloaded over this session, or with `is_out` uploaded
  /// completely. Any thread; it must not block.
  std::function<void(bool is_out, const BlobInfo&)> on_transferred;
};

struct TransferChannel {
  explicit TransferChannel(const TransferOptions& options)
      : link(options.link),
        store(options.store),
        thread_pool(*options.thread_pool),
        peer(options.peer),
        seal(options.seal),
        locate(options.locate),
        follow_redirect(options.follow_redirect),
        on_transferred(options.on_transferred),
        encrypts_(options.encrypts),
        send_(options.send) {}

  bool encrypts() const { return encrypts_ && encrypts_(); }
  /// Queues a message, in call order. A role calls this under its lock.
  void queue(blob_protocol::Message message);
  /// Sends queued messages, unless another thread is doing so. Not under a lock.
  void flush();
  /// Stops sending.
  void end();
  /// Why a transfer cannot begin while the thread pool's queue is full.
  Error overload() const;

  const std::shared_ptr<Link> link;
  const std::shared_ptr<BlobCache> store;
  ThreadPool& thread_pool;
  const std::string peer;
  const std::optional<BulkSeal> seal;
  const std::function<Addresses(const Digest&)> locate;
  const std::function<void(const BlobInfo&, Addresses, OnFetched)> follow_redirect;
  const std::function<void(bool is_out, const BlobInfo&)> on_transferred;
  std::atomic<uint64_t> responses{0};  // answers and puts for this side's requests
  std::atomic<uint64_t> bytes_in{0}, bytes_out{0}, fetched{0}, found{0}, failed{0}, served{0};

 private:
  const std::function<bool()> encrypts_;
  const std::function<void(std::string_view)> send_;
  std::mutex mutex_;
  std::deque<blob_protocol::Message> unsent_;
  bool is_sending_ = false, is_over_ = false;
};

/// Memory for one put and its seal. Memory of full chunks is reused, because it is still in the
/// processor's cache.
struct Chunk {
  explicit Chunk(size_t size);
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  std::string_view view() const { return {bytes.get(), size}; }
  const size_t size;
  uint64_t offset = 0, tag = 0;
  std::unique_ptr<char[]> bytes;
  std::atomic<int> users{0};  // of the received bytes
};
using ChunkPtr = std::shared_ptr<Chunk>;

}  // namespace flow::cluster
