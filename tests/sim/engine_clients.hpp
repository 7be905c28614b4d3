// A client of the simulated engine: it submits one run, tries again until it knows the outcome, and
// checks all that it is told.
#pragma once
#include <memory>
#include <string>

#include "tests/sim/engine_head.hpp"

namespace flow::sim {

class SimClient {
 public:
  SimClient(World& world, Disk& disk, const DurableState& durable, Head& head, uint32_t number);

  /// Does what there is to do for the run, while the head is up; false where that is nothing.
  /// Calls of the engine run turns until they return.
  bool act();
  bool is_done() const { return is_done_; }
  /// After the last restart: the state has the run, and its outcome.
  void check_kept() const;
  std::string text() const;

 private:
  RunContext context() const;
  std::string status() const;
  bool submit();
  bool resume(const std::string& task);
  bool bother(const std::string& status);
  bool post(core::Event event, std::vector<std::pair<Digest, std::string>> blobs = {});

  World& world_;
  Disk& disk_;
  const DurableState& durable_;
  Head& head_;
  const core::RunId id_;
  const std::shared_ptr<const Plan> plan_;
  const std::string plan_bytes_, bundle_ = "the simulated bundle";
  const bool cancels_, repeats_, fail_fast_;
  const core::Time starts_;
  uint64_t known_to_ = 0;  // start of the head that has this client's context
  core::Time next_try_ = 0;
  bool is_submitted_ = false, has_signalled_ = false, has_repeated_ = false, is_done_ = false;
};

}  // namespace flow::sim
