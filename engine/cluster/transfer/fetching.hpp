// One side's asking: content that it lacks comes from the peer, each piece once however many ask
// for it, and a bounded number of puts at a time. What comes is hashed and written beside each
// other, on threads of Jobs, while the next of it is on its way.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/cluster/transfer/line.hpp"

namespace flow::cluster {

/// Thread-safe.
class Fetching : public std::enable_shared_from_this<Fetching> {
 public:
  explicit Fetching(std::shared_ptr<Line> line) : line_(std::move(line)) {}

  void fetch(const BlobInfo& what, OnFetched done);
  /// What the peer says. False where that is nothing that it may say.
  bool on_offer(const content::Offer& offer);
  bool on_missing(const content::Missing& missing);
  bool on_elsewhere(const content::Elsewhere& elsewhere);
  /// Every `done` that was not called is called with this, and so are later ones.
  void end(const Error& why);
  /// Whether the peer owes an answer or a put.
  bool awaits();
  bool is_idle();

 private:
  struct Fetch;
  using FetchPtr = std::shared_ptr<Fetch>;
  using Lock = std::unique_lock<std::mutex>;

  void start_waiting();
  void look(const FetchPtr& fetch);
  void ask(const FetchPtr& fetch, bool anywhere);
  void receive(const FetchPtr& fetch, uint64_t size);
  void ask_for_chunks();
  void expect(const FetchPtr& fetch, const ChunkPtr& chunk);
  void on_put(const FetchPtr& fetch, const ChunkPtr& chunk, const Result<size_t>& came);
  void take_in(const FetchPtr& fetch, const ChunkPtr& chunk);
  void open_seal(const FetchPtr& fetch, const ChunkPtr& chunk);
  void hash(const FetchPtr& fetch, const ChunkPtr& chunk);
  void write(const FetchPtr& fetch, const ChunkPtr& chunk);
  void let_go(const FetchPtr& fetch, const ChunkPtr& chunk);
  void keep(const FetchPtr& fetch);
  void finish(const FetchPtr& fetch, const Status& status, bool is_damaged = false);
  bool is_over(const FetchPtr& fetch);
  void keep_when_whole(const FetchPtr& fetch);  // under the lock
  Error damaged(const Fetch& fetch) const;
  Error unsealed(const Fetch& fetch) const;

  const std::shared_ptr<Line> line_;
  std::mutex mutex_;
  std::optional<Error> ended_;  // set once
  // Fetches in progress: entries leave in finish().
  std::unordered_map<Digest, FetchPtr, DigestHash> fetches_;
  std::deque<FetchPtr> waiting_;
  std::map<uint64_t, FetchPtr> asked_;  // of the peer, by number
  std::deque<FetchPtr> receiving_;      // of which there is more to ask for
  size_t active_ = 0, chunks_ = 0;
  uint64_t last_id_ = 0, last_tag_ = kContentTags;
};

}  // namespace flow::cluster
