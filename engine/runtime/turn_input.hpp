// The inputs that a turn gets from the inbox: variants, each with a callback for the outcome.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/store/store.hpp"

namespace flow {

using NamedBlobs = std::vector<std::pair<Digest, std::string>>;
using MetadataRows = std::vector<std::pair<std::string, std::string>>;  // of Family::kv

/// An event from outside the engine. The turn admits it or rejects it.
struct PostedEvent {
  core::Event event;
  NamedBlobs blobs{};          // committed with the event
  MetadataRows metadata{};     // committed with the event
  core::AttemptId attempt{};   // if `reported_at` is set: the attempt that ended
  core::Time reported_at = 0;  // by this state's clock, if a worker reports the event late; else 0
  std::string reporter{};      // a worker of another machine whose report it is
  int64_t received_us = 0;     // of the end of an attempt, as TaskFinished's
};

/// A step or a checkpoint that an attempt saved. Its row and its blobs are committed with the
/// event, if that is admitted.
struct SavedProgress {
  core::Event event;
  core::AttemptId attempt;
  std::string step;   // its name; "" for a checkpoint
  std::string value;  // canonical bytes
  NamedBlobs blobs{};
  std::string reporter{};  // as PostedEvent's
};

/// Lines that an attempt logged.
struct AttemptLog {
  core::AttemptId attempt;
  uint32_t rank = 0;
  uint32_t stream = 0;  // 0 ctx:log, 1 stdout, 2 stderr
  core::Time at = 0;    // milliseconds since the Unix epoch
  std::string text;
  size_t cost = 0;  // acknowledged to the worker when the lines are written
};

/// A point that an attempt reported (`ctx:metric`).
struct AttemptMetric {
  core::AttemptId attempt;
  core::Time at = 0;  // milliseconds since the Unix epoch
  std::string name;
  double value = 0;
  int64_t step = 0;
  size_t cost = 0;  // acknowledged to the worker when the point is written
};

/// Runs in the turn, before its commit. Must not read the store: decisions of
/// earlier turns may not be written yet.
struct StateCallback {
  std::function<void(Batch&, core::State&)> run;
};

/// Runs in the turn, before its commit. May read the store: earlier turns are durable before it
/// runs, and this turn is durable before the next one begins.
struct StoreCallback {
  std::function<void(Batch&, core::State&)> run;
};

/// Called once after the commit of the turn: with true if the commit succeeded and an event was
/// admitted; with false also if the engine has stopped.
using OnAdmission = std::function<void(bool admitted)>;

struct TurnInput {
  std::variant<PostedEvent, SavedProgress, AttemptLog, AttemptMetric, StateCallback, StoreCallback>
      what;
  OnAdmission outcome{};  // may be null
};

}  // namespace flow
