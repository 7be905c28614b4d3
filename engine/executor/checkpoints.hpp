// Asynchronous checkpoints. The caller passes a copy of the state; a thread encodes, writes and
// syncs it and waits for its commit. At most one checkpoint is being written and one is pending: a
// newer one replaces the pending one.
//
// A state with tensors is the file checkpoints/RUN/TASK/NAME.safetensors below the state directory.
// It is synced before the database names it, and its predecessor is removed afterwards: after a
// crash at any point, one of them is complete.
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

/// Called by the attempt's thread unless noted otherwise.
class Checkpoints {
 public:
  using Blobs = std::vector<std::pair<Digest, std::string>>;
  /// Commits a row with the blobs that it refers to. Blocks; returns false if the attempt lost its
  /// lease. Called by the writing thread.
  using CommitRow = std::function<bool(const std::string& row, const Blobs& blobs)>;
  /// Where the checkpoints of an attempt go.
  struct Target {
    std::string folder;  // of its files, relative to the state directory
    std::string mark;    // with which their names begin
    CommitRow commit;
  };

  explicit Checkpoints(std::string state_dir);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Begins an attempt. `row` is that of its earlier checkpoint, or "". `make_target` is called by
  /// its first save(): most attempts have none.
  void begin(std::string row, std::function<Target()> make_target);
  /// The error since the last call.
  Status error();
  /// Queues a state. An error of kind `environment` means that the attempt lost its lease; any
  /// other kind that this state cannot be saved or the previous one was not written.
  Status save(const Value& state, Blobs blobs, MetricSteps metric_steps = {});
  /// Blocks until all checkpoints are written. Returns the writer's error, as save(); each is
  /// returned once.
  Status finish();
  /// Calls `callback` when no checkpoint of this attempt is left to write: immediately, or later on
  /// the writing thread. Any thread may call this.
  void when_idle(std::function<void()> callback);
  /// Drops pending checkpoints.
  void drop();
  /// The newest state, and where `metric_steps` is not null those that were saved with it. Call
  /// finish() first.
  Result<std::optional<Value>> newest(MetricSteps* metric_steps = nullptr);

 private:
  struct Job {
    uint64_t attempt = 0;
    CommitRow commit;
    std::string row;  // of a state without tensors
    bool has_file = false;
    std::string folder, name;  // below the state's folder
    CheckpointFile file;
    Value needs;
    MetricSteps metric_steps;
    Blobs blobs;
  };

  void work();
  void run(Job job);
  /// Returns the file's digest, or nothing if the checkpoint was dropped.
  Result<std::optional<Digest>> write(Job& job);
  /// Requires the lock.
  bool is_wanted(const Job& job) const { return job.attempt == attempt_ && !is_dropped_; }
  bool is_busy() const { return busy_with_ == attempt_; }
  bool is_idle() const { return !is_busy() && !waiting_; }
  Status take_error();
  void remove_others(const std::string& folder, const std::string& name) const;

  const std::string state_dir_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t attempt_ = 0;  // attempt number
  std::function<Target()> make_target_;
  std::optional<Target> target_;  // of this attempt; nothing before its first save
  uint64_t count_ = 0;            // of its checkpoints
  std::optional<Job> waiting_;
  uint64_t busy_with_ = 0;  // attempt of the current job; 0: none
  bool is_syncing_ = false;
  std::string syncing_;  // the file that is being synced
  bool is_dropped_ = false, is_fenced_ = false, is_over_ = false;
  std::string newest_;  // row
  std::optional<Error> error_;
  std::function<void()> on_idle_;
  std::thread thread_;
};

}  // namespace flow
