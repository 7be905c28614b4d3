// Lmod and environment-modules: finds the one of this machine, and tries to load modules.
#pragma once
#include <string>
#include <vector>

#include "engine/base/environment_variables.hpp"
#include "engine/plan/plan.hpp"

namespace flow {

/// The script that defines `module` in this shell: in $LMOD_PKG, $MODULESHOME, or where packages
/// install it. "" if there is none.
std::string find_module_init(const std::vector<std::string>& shell,
                             const EnvironmentVariables& variables);

/// Loads the modules in a shell as an attempt would. An error names the first one that cannot be
/// loaded, with what the module system says.
Status try_modules(const CommandEnvironment& environment, const std::vector<std::string>& shell,
                   const EnvironmentVariables& variables);

}  // namespace flow
