#include "engine/submission/command_environments.hpp"

#include <fmt/format.h>

#include <set>

#include "engine/environments/module_system.hpp"
#include "engine/environments/shell_setup.hpp"

namespace flow {

namespace {

std::string where(const TaskDef& def) {
  return fmt::format("{}:{}: the task `{}`", def.file, def.line, def.name);
}

/// Text that runs in the task's own shell needs one that understands it.
Status check_shell_of(const TaskDef& def) {
  const CommandEnvironment& environment = def.shell.environment;
  bool has_text = !environment.before.empty() || !environment.modules.empty();
  if (!has_text || reads_shell_text(def.shell.shell)) return {};
  return user_error(fmt::format(
      "{} has `{}`, which its shell `{}` does not understand: use bash or sh as its `shell`",
      where(def), environment.before.empty() ? "modules" : "before", def.shell.shell.front()));
}

}  // namespace

Result<bool> resolve_environments(Plan& plan, const std::string&, const EnvironmentVariables&) {
  for (TaskDef& def : plan.defs) {
    if (def.shell.environment.is_empty()) continue;
    FLOW_TRY(check_shell_of(def));
  }
  return false;
}

void check_environments(const Plan& plan, const std::vector<bool>& is_called,
                        const EnvironmentVariables& variables, std::vector<Error>& errors) {
  std::set<std::pair<std::vector<std::string>, std::vector<std::string>>> tried;
  for (size_t i = 0; i < plan.defs.size(); i++) {
    const TaskDef& def = plan.defs[i];
    const CommandEnvironment& environment = def.shell.environment;
    if (!is_called[i] || environment.modules.empty() ||
        !tried.insert({environment.modules, def.shell.shell}).second)
      continue;
    if (Status loaded = try_modules(environment, def.shell.shell, variables); !loaded.ok())
      errors.push_back(user_error(fmt::format("{}: {}", where(def), loaded.error().message)));
  }
}

}  // namespace flow
