// Options of a task by their names in docs/reference-lua.md, as plain values. The script's own
// options are read by lua/graph/options.cc, which follows the same rules.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.hpp"

namespace flow {

/// Names of the options that set_task_option takes, except for `env`.
const std::vector<std::string>& task_option_names();

/// Whether only tasks of flow.shell have the option: `before`, `modules`, `venv`, `conda` or
/// `container`.
bool is_command_option(const std::string& name);

/// The bit of the option in TaskDef::resource_functions; 0 if it can't be a function.
uint8_t resource_function(std::string_view option);

/// Sets the option; a table replaces the whole option. `name` is one of task_option_names(), or
/// "env.NAME" for one variable. A value `{ env = NAME }` of a variable is a secret. Error (user): a
/// clause about the option, without the name of the task.
Status set_task_option(TaskDef& def, const std::string& name, const Value& value);

/// The value of the option, as set_task_option takes it; nil if it has none.
Value task_option(const TaskDef& def, const std::string& name);

/// The variable of that name; null if the task does not set it.
const EnvEntry* find_variable(const TaskDef& def, const std::string& name);

}  // namespace flow
