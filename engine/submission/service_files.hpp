// Checks before a run that a service finds its files and its keys.
#pragma once
#include <string>
#include <vector>

#include "engine/base/environment_variables.hpp"
#include "engine/plan/plan.hpp"
#include "flow/result.hpp"

namespace flow {

/// Adds an error for each file and each variable of a service that is missing or cannot be used,
/// and a warning for keys that are too short to be redacted. `where` is the subject of the texts. A
/// service runs on the engine's own machine, so its files are looked for there.
void check_service_files(const ServiceSpec& service, const std::string& where,
                         const EnvironmentVariables& environment, std::vector<Error>& errors,
                         std::vector<std::string>& warnings);

}  // namespace flow
