// What the disk holds for good: a second engine state, made of the durable records alone. All that
// is seen outside the engine is compared with it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/core.hpp"
#include "engine/store/store.hpp"
#include "tests/sim/disk.hpp"
#include "tests/sim/engine_endings.hpp"

namespace flow::sim {

/// Whether the state believes that this attempt runs.
bool is_running(const core::State& state, const core::AttemptId& id);

/// Is shown each durable record, and each state between two batches. May throw BrokenPromise.
class RecordObserver {
 public:
  virtual ~RecordObserver() = default;
  virtual void on_record(const core::State& before, const core::Record& record) = 0;
  virtual void on_batch(const core::State& state) = 0;
};

/// How often the journal told of each.
struct Seen {
  size_t remote = 0;   // attempts that were assigned to a worker of another machine
  size_t gangs = 0;    // attempts with ranks on several workers
  size_t adopted = 0;  // attempts that went on after their worker had rejoined
  size_t losses = 0, drains = 0, resizes = 0, gpu_faults = 0, dynamic_calls = 0;
  size_t replicas = 0, restarted = 0;  // services that were ready: of several, after a death
  size_t grown = 0, shrunk = 0;        // services, by their load
  void add(const Seen& other);
};

class DurableState {
 public:
  /// `store` reads the same disk. It outlives this, and so does `observer`, which may be null.
  explicit DurableState(Store& store, RecordObserver* observer = nullptr);

  /// Applies what a durable batch holds. Throws BrokenPromise.
  void add(const Batch& batch);

  const core::State& state() const { return state_; }
  /// How many batches are durable.
  uint64_t batches() const { return batches_; }
  /// Throws BrokenPromise where no record of the first `batches` assigns the attempt, which starts.
  void check_start(const core::AttemptId& id, uint64_t batches = UINT64_MAX) const;
  /// A step, or where `name` is "" a checkpoint; in the first `batches`.
  bool has_saved(const core::AttemptId& id, const std::string& name,
                 uint64_t batches = UINT64_MAX) const;
  /// By the records of the first `batches` this attempt runs.
  bool ran(const core::AttemptId& id, uint64_t batches) const;
  /// What was not synced is lost: reports that change no run, such as log lines.
  void on_power_cut();
  bool runs(const core::AttemptId& id) const { return is_running(state_, id); }
  bool was_submitted(const core::RunId& run) const { return submitted_.contains(run); }
  bool has_ended(const core::RunId& run) const;
  /// The unit of this name, without those that a later expansion replaced; or null.
  const core::Unit* unit(const core::RunId& run, const std::string& name) const;
  const Seen& seen() const { return seen_; }
  /// How the state that the product recovers differs; "" if it does not.
  std::string recovery_difference() const;

 private:
  void add(const core::Record& record);
  void take_snapshot(core::State state);
  void check_state() const;
  void check_budget(const core::Event& event);
  void check_attempt(const core::Event& event) const;
  void check_success(const core::AttemptSucceeded& event);
  void count(const core::Event& event);
  void add_report(std::string_view row);

  Store& store_;
  RecordObserver* const observer_;
  Blobs blobs_;
  core::State state_;
  AttemptEndings endings_;
  Seen seen_;
  uint64_t batches_ = 0;
  // With the number of the batch that made it durable.
  std::map<core::AttemptId, uint64_t> assigned_, ended_;
  std::map<std::pair<core::AttemptId, std::string>, uint64_t> saved_;
  struct LastReport {
    uint64_t number = 0;
    bool may_skip = false;  // the next number
  };
  std::map<std::string, LastReport, std::less<>> reports_;  // by spool
  std::set<core::AttemptId> succeeded_;
  std::set<core::RunId> submitted_;
};

/// Where two states differ, or "".
std::string difference(const core::State& one, const core::State& other);

}  // namespace flow::sim
