// Checkpoints, written while the attempt goes on. Whoever calls has copied what is to be kept; a
// thread of its own encodes, writes and syncs it and hears that it is committed. One is being
// written and one waits at most: a newer one takes the place of the one that waits.
//
// A state with tensors is the file checkpoints/RUN/TASK/NAME.safetensors below the state's folder.
// It is synced before the database names it, and the one before it is removed after that: a crash
// at any instant leaves the one or the other, whole.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/blobs/checkpoint.hpp"

namespace flow {

/// Where nothing else is said it is called by the attempt's thread.
class Checkpoints {
 public:
  using Blobs = std::vector<std::pair<Digest, std::string>>;
  /// Commits a row with the content it needs. Blocks; false where the attempt lost its lease.
  /// Called by the thread.
  using Commit = std::function<bool(const std::string& row, const Blobs& blobs)>;

  explicit Checkpoints(std::string state_dir);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// An attempt begins whose files are in `folder`, below the state's folder, and whose earlier
  /// checkpoint has this row, "" for none.
  void begin(std::string folder, std::string mark, std::string row, Commit commit);
  /// What went wrong since the last call.
  Status error();
  /// The Error of kind environment: the attempt lost its lease. Of another: `state` can't be kept,
  /// or the one before it could not be written.
  Status save(const Value& state, Blobs blobs);
  /// Until nothing is to be written any more. The Error is the writer's, as of save; each is told
  /// once.
  Status finish();
  /// Calls `callback` once nothing of this attempt is to be written any more: now, or on the
  /// thread. For any thread.
  void when_idle(std::function<void()> callback);
  /// What waits or is being written is not needed any more.
  void drop();
  /// The newest state; call finish() before.
  Result<std::optional<Value>> newest();

 private:
  struct Job {
    uint64_t attempt = 0;
    Commit commit;
    std::string row;  // of a state without tensors
    bool has_file = false;
    std::string folder, name;  // below the state's folder
    CheckpointFile file;
    Value needs;
    Blobs blobs;
  };

  void work();
  void run(Job job);
  /// The file's digest, or nothing where it is not needed any more.
  Result<std::optional<Digest>> write(Job& job);
  /// Under the lock.
  bool is_wanted(const Job& job) const { return job.attempt == attempt_ && !is_dropped_; }
  bool is_busy() const { return busy_with_ == attempt_; }
  bool is_idle() const { return !is_busy() && !waiting_; }
  Status take_error();
  void remove_others(const std::string& folder, const std::string& name) const;

  const std::string state_dir_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t attempt_ = 0;  // counts them
  std::string folder_, mark_;
  Commit commit_;
  uint64_t count_ = 0;  // of its checkpoints
  std::optional<Job> waiting_;
  uint64_t busy_with_ = 0;  // whose job it is; 0: none
  bool is_syncing_ = false;
  std::string syncing_;  // the file
  bool is_dropped_ = false, is_fenced_ = false, is_over_ = false;
  std::string newest_;  // row
  std::optional<Error> error_;
  std::function<void()> on_idle_;
  std::thread thread_;
};

}  // namespace flow
