// Applies the options that flow.toml gives to tasks. It changes the plan before it is submitted, so
// a run keeps them, and the calls of dynamic tasks have them.
#pragma once
#include <string>
#include <vector>

#include "engine/config/configuration.hpp"
#include "engine/plan/plan.hpp"

namespace flow {

/// Reads the files and checks every option of tasks in them, also of profiles that are not chosen.
/// Error (user) with file and line.
Result<Configuration> read_task_configuration(const ConfigOptions& config);

/// Sets the options of the plan's tasks: those of [tasks] always, those of [defaults] where the
/// script has none. Returns whether a task changed. Appends a warning to the plan's for each
/// pattern that matches no task.
bool configure_tasks(const Configuration& configuration, Plan& plan);

/// The options that each task of the script's plan gets, with their origins.
std::vector<ConfigValue> explain_tasks(const Configuration& configuration, const Plan& plan);

/// The options outside of tasks; each once, by its highest precedence.
std::vector<ConfigValue> run_values(const Configuration& configuration);

/// The profile, and the options outside of tasks except for [head], which a run keeps; nil if there
/// are no files.
Result<Value> kept_config(const ConfigOptions& config);
/// The inverse. `profile` receives the profile's name. Leaves out what it cannot read.
std::vector<ConfigValue> values_of_kept(const Value& kept, std::string& profile);

}  // namespace flow
