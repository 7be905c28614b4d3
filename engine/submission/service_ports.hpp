// Checks before a run that its services can listen at the same time.
#pragma once
#include <vector>

#include "engine/plan/plan.hpp"
#include "flow/result.hpp"

namespace flow {

/// Adds an error for each two services of the graph that listen at one port, unless they are in
/// different branches of a `flow.when`.
void check_service_ports(const Plan& plan, std::vector<Error>& errors);

}  // namespace flow
