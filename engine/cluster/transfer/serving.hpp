// The other side of a Fetching: content of this store's goes to the peer as it asks for it. Nothing
// that the peer says is trusted.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "engine/cluster/transfer/line.hpp"

namespace flow::cluster {

/// Thread-safe.
class Serving : public std::enable_shared_from_this<Serving> {
 public:
  explicit Serving(std::shared_ptr<Line> line) : line_(std::move(line)) {}

  /// What the peer says. False where that is nothing that it may say.
  bool on_want(const content::Want& want);
  bool on_ready(const content::Ready& ready);
  bool on_done(const content::Done& done);
  void end();

 private:
  struct Serve;
  using ServePtr = std::shared_ptr<Serve>;
  /// What the peer has memory ready for.
  struct Asked {
    ServePtr serve;
    uint64_t tag = 0, offset = 0;
    uint32_t size = 0;
  };

  void open(const ServePtr& serve);
  void send_elsewhere(const ServePtr& serve, const Addresses& addresses);
  // Under the lock:
  void start_reads();
  void forget(const ServePtr& serve);
  void read(const Asked& asked);
  void put(const ServePtr& serve, const ChunkPtr& chunk, size_t size);
  void put_ended(size_t size);
  void fail(const ServePtr& serve, const Error& why);
  bool is_wanted(const ServePtr& serve);

  const std::shared_ptr<Line> line_;
  std::mutex mutex_;
  bool is_over_ = false;
  std::map<uint64_t, ServePtr> serves_;  // that the peer wants: they leave in forget()
  uint64_t last_id_ = 0;
  std::deque<Asked> asked_;                 // and not read yet
  size_t putting_ = 0, bytes_putting_ = 0;  // read, or being read, and not put yet
};

}  // namespace flow::cluster
