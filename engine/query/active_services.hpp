// The services of active runs: what the state knows, and what their fronts count.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/protocol/front.pb.h"
#include "engine/store/rows.hpp"
#include "flow/flow.hpp"

namespace flow {

/// Asks the front in a folder.
using AskFront = std::function<Result<front::Status>(const std::string& folder)>;

/// Why a process could not resume this run; "" for nothing.
using WhyNotResumed = std::function<std::string(const core::RunId& run)>;

/// The services of the runs in `records`, in their order. An interrupted run is listed while a
/// front still has replicas of it, which outlive the engine for their lease, or while `why_not`
/// returns a reason.
std::vector<ServiceInfo> active_services(
    const core::State& state, const std::vector<RunRecord>& records, const std::string& state_dir,
    const AskFront& ask, const WhyNotResumed& why_not = [](const core::RunId&) { return ""; });

/// Adds what only its front knows to the service of an active run: the processes of its replicas
/// that have joined, and its access log.
void add_front_facts(const std::string& state_dir, const AskFront& ask, ServiceInfo& service);

}  // namespace flow
