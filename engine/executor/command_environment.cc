#include "engine/executor/command_environment.hpp"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstring>

#include "engine/base/files.hpp"
#include "engine/environments/module_system.hpp"

namespace flow {

namespace {

std::string where(const Attempt& attempt) {
  const wire::Start& start = attempt.start();
  return fmt::format("{}: `{}`", start.shell().defined_at(), start.task());
}

}  // namespace

std::string stage_file(const std::string& dir) { return dir + ".stage"; }

Result<OpenEnvironment> open_environment(Attempt& attempt) {
  const wire::Shell& shell = attempt.start().shell();
  OpenEnvironment open;
  if (shell.environment().empty()) return open;
  auto options = decode_command_environment(shell.environment());
  FLOW_TRY(options);
  open.options = std::move(*options);
  open.setup.stage_file = stage_file(attempt.start().dir());
  if (!open.options.modules.empty()) {
    auto variables = attempt.environment();
    open.setup.module_init = find_module_init({shell.shell().begin(), shell.shell().end()},
                                              {variables.begin(), variables.end()});
    if (open.setup.module_init.empty())
      return environment_error(
          fmt::format("{} needs modules, and this machine has no module system: install Lmod or "
                      "environment-modules, or set MODULESHOME to its folder",
                      where(attempt)));
  }
  open.text = setup_text(open.options, open.setup);
  return open;
}

std::optional<core::Failure> setup_failure(const Attempt& attempt, int status,
                                           const std::string& again) {
  if (attempt.start().shell().environment().empty()) return std::nullopt;
  auto stage = read_file(stage_file(attempt.start().dir()));
  if (!stage.ok() || stage->empty()) return std::nullopt;
  core::Failure failure;
  bool is_signal = WIFSIGNALED(status);
  failure.code = is_signal ? WTERMSIG(status) : WEXITSTATUS(status);
  failure.cause = is_of_machine(*stage) ? core::Cause::environment
                  : is_signal           ? core::Cause::signal
                                        : core::Cause::exit_code;
  std::string how = is_signal ? fmt::format("was killed by signal {} ({})", failure.code,
                                            ::strsignal(failure.code))
                              : fmt::format("ended with exit code {}", failure.code);
  failure.message =
      fmt::format("{} did not begin: {} {}{}{}", where(attempt), stage_text(*stage), how,
                  failure.code == 0 ? ", before the command could run" : "", again);
  return failure;
}

}  // namespace flow
