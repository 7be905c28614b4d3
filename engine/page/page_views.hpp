// What the page shows besides the state of runs: workers, services, what waits, costs. Each reads
// the state or asks another process, and may block for seconds: not on the thread of the state.
#pragma once
#include <string>

#include "engine/page/gpu_readings.hpp"
#include "engine/page/state_follower.hpp"
#include "flow/flow.hpp"

namespace flow {

/// {"address":…,"nodes":[…],"readings":{…}}: the workers of the process that writes the state, each
/// as `flow nodes --json` prints it, and what is measured of their GPUs on this machine. The
/// process itself is the first. Without one there are none.
Result<std::string> page_cluster(const std::string& state_dir, GpuReadings& readings);

/// {"services":[…],"runs":[…]}: as `flow services --json`, and the rows of their runs, with their
/// rollovers. Throws Failed.
std::string page_services(const EngineOptions& options);

/// {"total":…,"tasks":[{"run","name","task","tag","status","waits_for"}…]}: of active runs, at most
/// `limit` tasks. Throws Failed.
std::string page_waiting(const StateFollower& state, size_t limit);

/// The attempts before the newest one of the task, or of each task of the run: see page_attempts().
/// At most `limit`. Throws Failed.
std::string page_earlier_attempts(const EngineOptions& options, const std::string& run,
                                  const std::string& task, size_t limit);

constexpr size_t kCostRowsMax = 500;
/// {"run":{…},"rows":N,"cost":{…}}: the row of the run, with its budget if it has one, and what
/// `flow cost --json` prints of it, with the first kCostRowsMax of its N rows. `by`: as `--by`. A
/// run without prices has those of the working directory's flow.toml. Throws Failed.
std::string page_cost(const EngineOptions& options, const std::string& run, const std::string& by);
/// {"rows":N,"cost":{…}} of all runs that were started in the last `since_s` seconds. Throws
/// Failed.
std::string page_costs(const EngineOptions& options, uint64_t since_s, const std::string& by);

}  // namespace flow
