// A new run from what the state keeps of another one: its plan, its code and its parameters.
#pragma once
#include "engine/store/store.hpp"
#include "engine/submission/submission.hpp"

namespace flow {

/// How the services of the new run take over the traffic of those that are served under its name.
enum class Takeover : uint8_t { by_canary, at_once };

/// The run of `record` once more, for the environment and the options of `submission`, which names
/// it; its id is missing. Error (user) if it has no service, or if the state does not have its plan
/// any more.
Result<Prepared> prepare_stored(const Store& store, const Blobs& blobs, const RunRecord& record,
                                const Submission& submission, Takeover takeover);
/// Error (user) if a node of the previewed plan other than a service would run. `record`: the run
/// that the plan is from.
Status check_only_services_run(const PlanInfo& preview, const RunRecord& record);

}  // namespace flow
