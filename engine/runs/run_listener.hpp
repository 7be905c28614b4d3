// The port through which a run's events leave the engine.
#pragma once
#include <vector>

#include "flow/flow.hpp"
#include "flow/result.hpp"

namespace flow {

/// Where a run's events go: one listener, called inside a turn; must neither block nor wait for
/// another turn.
class RunListener {
 public:
  virtual ~RunListener() = default;
  /// The events of one or more turns, in order, when those are committed.
  virtual void on_events(std::vector<Event> events) = 0;
  /// The run came to rest: final, or interrupted. No event follows.
  virtual void on_end() = 0;
  /// In its place, where the writer has stopped for good.
  virtual void fail(Error why) = 0;
};

}  // namespace flow
