// Admits events, applies them to the state and collects their records for the commit.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/commits.hpp"
#include "engine/runtime/run_event_feed.hpp"
#include "engine/runtime/turn_blobs.hpp"
#include "engine/telemetry/engine_telemetry.hpp"

namespace flow {

/// Used by the turn's thread.
class Recorder {
 public:
  Recorder(core::State& state, Commit& open, TurnBlobs& blobs, InputResolver& resolver,
           RunEventFeed& feed, EngineTelemetry& telemetry)
      : state_(state),
        open_(open),
        blobs_(blobs),
        resolver_(resolver),
        feed_(feed),
        telemetry_(telemetry) {}

  /// Sets the time of a turn. All of its events have this time, except late reports.
  void begin_turn(core::Time now) { turn_time_ = now; }
  core::Time turn_time() const { return turn_time_; }
  /// Whether the event was admitted. `at`: its time, by the state's clock.
  bool record_if_admitted(core::Event event, core::Time at);
  /// For an event that was admitted by the state as it is now.
  void record(core::Event event, core::Time at);
  /// Adds commands that follow from no event.
  void add_commands(std::vector<core::Command> commands);
  /// Calls `visit` with each command since the last call. It must not record.
  template <typename Visit>
  void drain_commands(Visit&& visit) {
    for (core::Command& command : commands_) visit(std::move(command));
    commands_.clear();
  }
  /// An attempt that has saved a checkpoint in this turn, the newest first; each is returned once.
  std::optional<core::AttemptId> take_checkpointed();

 private:
  void put_cache_entry(const core::AttemptSucceeded& event);
  void keep_urls(const core::Event& event);
  void note_missing_input(const core::AttemptId& id, core::Failure& failure);

  core::State& state_;
  Commit& open_;
  TurnBlobs& blobs_;
  InputResolver& resolver_;
  RunEventFeed& feed_;
  EngineTelemetry& telemetry_;
  std::vector<core::Command> commands_;  // of the events since they were last drained
  std::vector<core::AttemptId> checkpointed_;
  core::Time turn_time_ = 0;
};

}  // namespace flow
