// The schemas of the journal and of snapshots. A program writes the newest one and reads all of
// them.
#pragma once
#include <cstdint>
#include <iterator>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

struct JournalSchema {
  uint32_t number;
  std::string_view change;       // the change that it introduced
  std::string_view oldest_flow;  // the oldest version of flow that reads it
};

/// Numbers without gaps, in order. 0.1.0 is not released: a build of it reads the schemas up to its
/// own kJournalSchema. A new row comes with pinned bytes in tests/store/pinned.
constexpr JournalSchema kJournalSchemas[] = {
    {1, "records, with one message for all kinds of events", "0.1.0"},
    {2, "GPUs of a machine and of an attempt", "0.1.0"},
    {3, "workers", "0.1.0"},
    {4, "disconnected workers, labels, gangs", "0.1.0"},
    {5, "draining workers", "0.1.0"},
    {6, "growth of elastic gangs", "0.1.0"},
    {7, "GPUs joined by NVLink", "0.1.0"},
    {8, "custom resources", "0.1.0"},
    {9, "engines that run tasks and lead workers", "0.1.0"},
    {10, "failed GPUs, and attempts that failed by them", "0.1.0"},
    {11, "missing results", "0.1.0"},
    {12, "deaths of workers, workers that are set aside, announced workers", "0.1.0"},
    {13, "GPUs that a worker gets after it joined", "0.1.0"},
    {14, "attempts whose input is gone", "0.1.0"},
    {15, "one message per kind of event", "0.1.0"},
    {16, "ignored failures", "0.1.0"},
    {17, "tags of instances", "0.1.0"},
    {18, "resources that functions computed, missing environments", "0.1.0"},
    {19, "rollovers of served names, replicas and restarts of services", "0.1.0"},
    {20, "replicas that scale, tasks that decide about a canary", "0.1.0"},
    {21, "what attempts used, users of runs", "0.1.0"},
    {22, "what all attempts held, budgets of runs", "0.1.0"},
    {23, "who asked for an action on a run", "0.1.0"},
    {24, "use and energy of the GPUs of attempts", "0.1.0"},
    {25, "presence of GPUs, waits of ranks for each other, bytes moved between machines", "0.1.0"},
};
/// What this program writes, and the newest that it reads.
constexpr uint32_t kJournalSchema = std::rbegin(kJournalSchemas)->number;
/// The first whose records are a oneof; those before it are flat (flat_records.hpp).
constexpr uint32_t kOneofSchema = 15;
/// The first whose snapshots hold when GPUs were there.
constexpr uint32_t kPresenceSchema = 25;

/// OK for a schema of the table. `what` is "journal" or "snapshot".
Status check_schema(uint32_t schema, std::string_view what);

}  // namespace flow
