// What turns have decided and not yet written. Used by the turn's thread; the writing thread owns
// the batch and the records of the commit in flight.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runtime/event_log.hpp"
#include "engine/runtime/turn_input.hpp"
#include "engine/store/rows.hpp"
#include "engine/store/store.hpp"
#include "engine/telemetry/span.hpp"
#include "flow/flow.hpp"

namespace flow {

/// What one or more turns decided: what is to be written, and what follows when it is durable.
struct Commit {
  uint64_t number = 1;  // orders that are staged with it wait for it
  Batch batch;
  std::vector<core::Record> records;
  bool is_durable = false;     // the write is to be synced
  size_t log_cost = 0;         // of the log lines in the batch, for the worker
  uint64_t journal_bytes = 0;  // size of the encoded records
  int64_t write_us = 0;        // how long its write took
  std::unordered_map<Digest, std::string, DigestHash> staged;  // blobs that the batch holds
  size_t staged_bytes = 0;
  std::unordered_map<Digest, CacheEntry, DigestHash> cached;  // cache entries that the batch holds
  std::vector<core::Command> effects;
  std::vector<std::pair<OnAdmission, bool>> outcomes;  // with whether the event was admitted
  std::vector<Event> events;                           // for the listeners
  EngineLogLines log_lines;                            // of the engine's log
  std::vector<Span> spans;                             // for a collector
  bool empty() const {
    return batch.writes.empty() && records.empty() && effects.empty() && outcomes.empty() &&
           events.empty();
  }
};

struct Commits {
  Commit open;  // of this turn, and of earlier turns whose commit has not begun
  /// Is being written. Turns read its blobs and its cache entries meanwhile.
  Commit in_flight;
};

}  // namespace flow
