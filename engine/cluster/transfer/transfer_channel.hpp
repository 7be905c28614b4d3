// What both roles of a transfer have of their session.
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

#include "engine/cluster/transfer/blob_cache.hpp"
#include "engine/cluster/transfer/thread_pool.hpp"
#include "engine/crypto/seal.hpp"
#include "engine/protocol/blob.pb.h"
#include "flow/transport.hpp"

namespace flow::cluster {

constexpr size_t kChunkBytes = size_t{1} << 20;  // of one put
/// Asked for at a time, of all content together: what is on its way and what is being taken in stay
/// in a processor's cache.
constexpr size_t kChunksMax = 6;
constexpr size_t kDownloadsMax = 16;  // under way at a time; more wait
/// What this side awaits has tags from here on, each once in a session.
constexpr uint64_t kBlobTags = uint64_t{0xc0} << 56;
constexpr uint64_t kBlobBytesMax = uint64_t{1} << 60;
constexpr size_t kTextBytesMax = 4096;  // of a path or a reason that is told
static_assert(kChunkBytes + kBulkSealBytes <= kPutBytesMax);

/// For people.
struct TransferCounters {
  uint64_t bytes_in = 0, bytes_out = 0;  // that were put
  uint64_t fetched = 0, found = 0;       // pieces of content that came, and that were here
  uint64_t failed = 0, served = 0;       // of fetches; pieces that the peer took whole
};

/// Told once, by any thread, whether the content is under objects/, verified, and in a state
/// durable. It must not block.
using OnFetched = std::function<void(Status)>;
using Addresses = std::vector<std::string>;
constexpr size_t kAddressesMax = 8, kAddressBytesMax = 300;

struct TransferOptions {
  std::shared_ptr<BlobCache> store;
  ThreadPool* thread_pool = nullptr;  // outlives the transfer
  std::shared_ptr<Link> link;         // of the session; puts go over it
  /// Sends one message of ours to the peer's transfer, sealed and in order, as part of a message of
  /// the session. Thread-safe, does not block. It may be called once more while the transfer is
  /// destroyed: what it needs it holds.
  std::function<void(std::string_view message)> send;
  std::string peer;              // for people: "node `w1` at 10.0.0.7:41"
  std::optional<BulkSeal> seal;  // the session's
  /// Whether what is put is sealed, and taken only so; may change, any thread. Null is no: puts may
  /// be read on the way then, not changed.
  std::function<bool()> encrypts;
  /// Who has content that the peer would take from anybody, where it is not to come from here. Any
  /// thread.
  std::function<Addresses(const Digest&)> locate;
  /// Fetches from one of those that the peer named; null: whatever is asked of it comes from it.
  /// What fails comes from it too.
  std::function<void(const BlobInfo&, Addresses, OnFetched)> follow_redirect;
  /// Told of each piece of content that came over this session, or with `is_out` that the peer took
  /// whole. Any thread; it must not block.
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
  /// Takes a message to be sent, in the order of the calls. A role calls it under its lock.
  void queue(blob_protocol::Message message);
  /// Sends them, or leaves that to who does so already. Not under a lock.
  void flush();
  /// No more is sent.
  void end();

  const std::shared_ptr<Link> link;
  const std::shared_ptr<BlobCache> store;
  ThreadPool& thread_pool;
  const std::string peer;
  const std::optional<BulkSeal> seal;
  const std::function<Addresses(const Digest&)> locate;
  const std::function<void(const BlobInfo&, Addresses, OnFetched)> follow_redirect;
  const std::function<void(bool is_out, const BlobInfo&)> on_transferred;
  std::atomic<uint64_t> responses{0};  // of what this side asked for: answers, and puts
  std::atomic<uint64_t> bytes_in{0}, bytes_out{0}, fetched{0}, found{0}, failed{0}, served{0};

 private:
  const std::function<bool()> encrypts_;
  const std::function<void(std::string_view)> send_;
  std::mutex mutex_;
  std::deque<blob_protocol::Message> unsent_;
  bool is_sending_ = false, is_over_ = false;
};

/// Memory of one put, with room for its seal. That of whole chunks is used again by the next ones:
/// a processor has it in its cache still.
struct Chunk {
  explicit Chunk(size_t size);
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  std::string_view view() const { return {bytes.get(), size}; }
  const size_t size;
  uint64_t offset = 0, tag = 0;
  std::unique_ptr<char[]> bytes;
  std::atomic<int> users{0};  // of the bytes that came
};
using ChunkPtr = std::shared_ptr<Chunk>;

}  // namespace flow::cluster
