// The port through which the engine delivers a run's events.
#pragma once
#include <vector>

#include "flow/flow.hpp"
#include "flow/result.hpp"

namespace flow {

/// The listener of a run, called within a turn. It must neither block nor wait for another turn.
class RunListener {
 public:
  virtual ~RunListener() = default;
  /// Events of one or more turns, in order, after their commit.
  virtual void on_events(std::vector<Event> events) = 0;
  /// The run ended or was interrupted. No event follows.
  virtual void on_end() = 0;
  /// Called instead of on_end() if the writer stopped for good.
  virtual void fail(Error why) = 0;
};

}  // namespace flow
