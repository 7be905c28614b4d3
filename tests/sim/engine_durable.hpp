// What the disk holds for good: a second engine state, made of the durable records alone. All that
// is seen outside the engine is compared with it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "engine/core/core.hpp"
#include "engine/store/store.hpp"
#include "tests/sim/disk.hpp"

namespace flow::sim {

class DurableState {
 public:
  /// `store` reads the same disk. It outlives this.
  explicit DurableState(Store& store);

  /// Applies what a durable batch holds. Throws BrokenPromise.
  void add(const Batch& batch);

  const core::State& state() const { return state_; }
  /// Throws BrokenPromise where no durable record assigns the attempt, which starts now.
  void check_start(const core::AttemptId& id) const;
  /// A step, or where `name` is "" a checkpoint.
  bool has_saved(const core::AttemptId& id, const std::string& name) const;
  /// The state believes that this attempt runs.
  bool runs(const core::AttemptId& id) const;
  bool was_submitted(const core::RunId& run) const { return submitted_.contains(run); }
  bool has_ended(const core::RunId& run) const;
  /// The unit of this name, or null.
  const core::Unit* unit(const core::RunId& run, const std::string& name) const;
  /// How the recovery of the product comes to another state; "" where it does not.
  std::string recovery_difference() const;

 private:
  void add(const core::Record& record);
  void take_snapshot(core::State state);
  void check_attempt(const core::Event& event) const;
  void check_success(const core::AttemptSucceeded& event);

  Store& store_;
  Blobs blobs_;
  core::State state_;
  std::set<core::AttemptId> assigned_, succeeded_;
  std::set<std::pair<core::AttemptId, std::string>> saved_;
  std::set<core::RunId> submitted_;
};

/// Where two states differ, or "".
std::string difference(const core::State& one, const core::State& other);

}  // namespace flow::sim
