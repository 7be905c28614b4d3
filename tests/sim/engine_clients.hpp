// A client of the simulated engine: it submits one run, tries again until it knows the outcome, and
// checks all that it is told.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/sim/engine_head.hpp"

namespace flow::sim {

/// What a run leads to, whatever fails meanwhile.
struct Outcome {
  core::RunStatus status = core::RunStatus::pending;
  Digest result;
  std::map<std::string, std::pair<core::UnitStatus, Digest>> units;  // status and result, by name
  /// The run's result is null if a result that it is made of was removed.
  bool is_whole = true;
  /// It also depends on the order of events: a cancellation, `fail_fast`, a quarantined task.
  bool depends_on_order = false;
};
/// Where they differ, or "".
std::string difference(const Outcome& one, const Outcome& other);

/// A run and how it is submitted.
struct Submission {
  std::shared_ptr<const Plan> plan;
  bool cancels = false, fail_fast = false, fresh = false;
  std::string repeats;  // a task that runs again after the run has succeeded; "": none
  int32_t jobs = 0;
  std::string name;  // "": that of its id
  int64_t serve_for_ms = 40;
  core::Time delay_ms = 0;
};

class SimClient {
 public:
  SimClient(World& world, Disk& disk, const DurableState& durable, Head& head, uint32_t number,
            Submission submission);

  /// Does what there is to do for the run, while the head is up; false where that is nothing.
  /// Calls of the engine run turns until they return.
  bool act();
  bool is_done() const { return is_done_; }
  /// After the last restart: the state has the run, and its outcome.
  void check_kept() const;
  std::string text() const;
  const core::RunId& id() const { return id_; }
  /// How often it resumed the run because a result was missing.
  size_t recomputations() const { return recomputations_; }
  /// When it is done.
  const Outcome& outcome() const { return outcome_; }

 private:
  RunContext context() const;
  std::string status() const;
  bool finish(const std::string& status);
  bool submit();
  bool resume(const std::string& task);
  bool bother(const std::string& status);
  bool post(core::Event event, std::vector<std::pair<Digest, std::string>> blobs = {});

  World& world_;
  Disk& disk_;
  const DurableState& durable_;
  Head& head_;
  const core::RunId id_;
  const Submission submission_;
  const std::string plan_bytes_, bundle_ = "the simulated bundle";
  const core::Time starts_;
  Outcome outcome_;
  size_t recomputations_ = 0;
  int64_t budget_nano_ = 0;  // of the newest request; 0: none
  uint64_t known_to_ = 0;    // start of the head that has this client's context
  core::Time next_try_ = 0;
  bool is_submitted_ = false, has_signalled_ = false, has_repeated_ = false, is_done_ = false;
};

}  // namespace flow::sim
