// Why attempts end in the journal. An attempt that its worker may still run is never given up, and
// a worker that rejoins keeps what it runs.
#pragma once
#include <vector>

#include "engine/core/core.hpp"

namespace flow::sim {

class AttemptEndings {
 public:
  /// Before the record is applied.
  void on_record(const core::State& before, const core::Record& record);
  /// Afterwards: the attempts that the record ended. Throws BrokenPromise.
  std::vector<core::AttemptId> check(const core::State& after) const;

 private:
  /// A running attempt, and what the record may do to it.
  struct Running {
    core::AttemptId id;
    bool may_end = false;     // the record is its end, or tells that its worker does not run it
    bool must_go_on = false;  // its worker rejoined with it and has what it had
  };
  std::vector<Running> running_;
};

}  // namespace flow::sim
