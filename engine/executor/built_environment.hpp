// Builds an environment from a file of packages.
#pragma once
#include <string>

#include "engine/environments/package_builds.hpp"
#include "engine/executor/attempt.hpp"

namespace flow {

/// The prefix of the environment. Builds it if no other process has; a process that finds another
/// one building waits for it. Logs its packages once per run. Error of kind `environment` if this
/// machine lacks what it needs, or the attempt was asked to stop; of kind `user` if it cannot be
/// built, with the last lines of the output.
Result<std::string> built_prefix(Attempt& attempt, const PackageBuild& build);

}  // namespace flow
