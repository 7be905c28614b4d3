// What the commands of a plan run in: reads the files that the options name, and checks that this
// machine has what they need.
#pragma once
#include <string>
#include <vector>

#include "engine/base/environment_variables.hpp"
#include "engine/plan/plan.hpp"

namespace flow {

/// Fills in what the options of the plan's tasks refer to. Relative paths start at `root`, the
/// script's folder. A preview pulls no image. Returns whether the plan changed; an error names the
/// task.
Result<bool> resolve_environments(Plan& plan, const std::string& root,
                                  const EnvironmentVariables& variables, bool is_preview);

/// For a run that uses no remote worker: adds errors for what this machine lacks. Tasks that no
/// node calls are not checked. Each list of modules is tried once.
void check_environments(const Plan& plan, const std::vector<bool>& is_called,
                        const EnvironmentVariables& variables, std::vector<Error>& errors);

}  // namespace flow
