#include "engine/executor/command_environment.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "engine/base/files.hpp"
#include "engine/environments/module_system.hpp"
#include "engine/executor/built_environment.hpp"

namespace flow {

namespace {

/// What the stage file says until the shell of a container runs.
constexpr const char* kShellStage = "shell";

std::string where(const Attempt& attempt) {
  return fmt::format("{}: `{}`", attempt.start().shell().defined_at(), attempt.shown_task());
}

std::vector<std::string> shell_of(const Attempt& attempt) {
  const auto& words = attempt.start().shell().shell();
  return {words.begin(), words.end()};
}

EnvironmentVariables run_variables(Attempt& attempt) {
  auto variables = attempt.link().environment(attempt.start().id().run());
  return {variables->begin(), variables->end()};
}

Status find_modules(Attempt& attempt, OpenEnvironment& open) {
  auto variables = attempt.environment();
  open.setup.module_init =
      find_module_init(shell_of(attempt), {variables.begin(), variables.end()});
  if (!open.setup.module_init.empty()) return {};
  return environment_error(
      "there is no module system on this machine: install "
      "Lmod or environment-modules, or set "
      "MODULESHOME to its folder");
}

Status find_prefixes(Attempt& attempt, OpenEnvironment& open) {
  const PackageEnvironment &venv = open.options.venv, &conda = open.options.conda;
  if (!venv.is_file) open.setup.venv = venv.path;
  if (!conda.is_file) open.setup.conda = conda.path;
  for (const std::string* prefix : {&open.setup.venv, &open.setup.conda}) {
    if (!prefix->empty() && ::access((*prefix + "/bin").c_str(), X_OK) != 0)
      return environment_error(
          fmt::format("`{}` is no environment on this machine: it has no folder `bin`", *prefix));
  }
  for (const PackageBuild& build : package_builds(open.options)) {
    auto prefix = built_prefix(attempt, build);
    FLOW_TRY(prefix);
    (build.tool == PackageTool::pip ? open.setup.venv : open.setup.conda) = std::move(*prefix);
  }
  return {};
}

// Another name or a moved tag must not give another image than the one in the
// key.
Status find_image(Attempt& attempt, OpenEnvironment& open) {
  const CommandEnvironment& options = open.options;
  EnvironmentVariables variables = run_variables(attempt);
  open.runtime = find_runtime(options.container, variables);
  if (!open.runtime)
    return environment_error(fmt::format("`{}` needs {}, and none is in PATH on this machine",
                                         options.container, runtimes_of(options.container)));
  open.image = options.image_path.empty() ? options.container : options.image_path;
  bool is_missing_file =
      !options.image_path.empty() && ::access(options.image_path.c_str(), R_OK) != 0;
  if (is_missing_file)
    return environment_error(
        fmt::format("the image `{}` is not on this machine", options.image_path));
  if (open.runtime->kind == RuntimeKind::apptainer) {
    bool is_fixed =
        !options.image_path.empty() || options.container.find("@sha256:") != std::string::npos;
    if (is_fixed) return {};
    return environment_error(
        fmt::format("apptainer, the runtime of this machine, cannot say which image `{}` names: "
                    "write its digest, `…@sha256:…`, or the path of a .sif",
                    options.container));
  }
  bool is_here = !options.image.empty() &&
                 image_id(*open.runtime, "podman://" + options.image, variables, false).ok();
  open.image = options.image;
  if (is_here) return {};
  auto id = image_id(*open.runtime, options.container, variables, true);
  FLOW_TRY(id);
  if (!options.image.empty() && *id != options.image)
    return environment_error(
        fmt::format("`{}` names another image on this machine, {}, than when "
                    "the run was submitted, {}",
                    options.container, *id, options.image));
  open.image = std::move(*id);
  return {};
}

/// The exit code of a runtime that could not start a container.
constexpr int kRuntimeFailed = 125, kFailedOfApptainer = 255;

core::Failure container_failure(const Attempt& attempt, const OpenEnvironment& environment,
                                int code, const std::string& again, const std::string& evidence) {
  core::Failure failure;
  failure.code = code;
  failure.evidence = evidence;
  const std::string& image = environment.options.container;
  bool is_of_machine = code == kRuntimeFailed || code == kFailedOfApptainer;
  if (is_of_machine) {
    failure.cause = core::Cause::environment;
    failure.message = fmt::format("{} did not begin: `{}` cannot start a container of `{}`{}",
                                  where(attempt), environment.runtime->program, image, again);
    return failure;
  }
  failure.cause = core::Cause::exit_code;
  failure.message = fmt::format(
      "{} did not begin: the image `{}` cannot run its shell `{}`: install it "
      "in the image, or "
      "name another shell with `shell = {{ \"sh\", \"-eu\", \"-c\" }}`{}",
      where(attempt), image, attempt.start().shell().shell(0), again);
  return failure;
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
  if (!open.options.modules.empty()) FLOW_TRY(find_modules(attempt, open));
  FLOW_TRY(find_prefixes(attempt, open));
  if (!open.options.container.empty()) FLOW_TRY(find_image(attempt, open));
  if (reads_shell_text(shell_of(attempt))) open.text = setup_text(open.options, open.setup);
  return open;
}

AttemptContainer::AttemptContainer(Attempt& attempt, const OpenEnvironment& environment)
    : attempt_(attempt), environment_(environment) {}

AttemptContainer::~AttemptContainer() { end(0); }

void AttemptContainer::end(int status) {
  if (!environment_.runtime) return;
  ::unlink(container_variables_path(attempt_.state_dir(), ::getpid()).c_str());
  if (record_.name.empty()) return;
  bool is_killed = (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL) ||
                   (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  is_out_of_memory_ = is_killed && flow::is_out_of_memory(record_);
  end_container(container_record_path(attempt_.state_dir(), ::getpid()));
  record_ = {};
}

std::map<std::string, std::string> AttemptContainer::own_variables(
    const std::map<std::string, std::string>& all) const {
  auto of_machine = attempt_.link().environment(attempt_.start().id().run());
  std::map<std::string, std::string> own{{"HOME", attempt_.start().dir()}};
  for (const auto& [name, value] : all) {
    auto same = of_machine->find(name);
    if (same == of_machine->end() || same->second != value) own[name] = value;
  }
  for (const wire::EnvVar& variable : attempt_.start().env())
    own[variable.name()] = variable.value();
  own.erase("PWD");
  return own;
}

Status AttemptContainer::enter(const std::vector<std::string>& shell, SpawnRequest& what) {
  const wire::Start& start = attempt_.start();
  ContainerOrder order;
  order.image = environment_.image;
  order.name = fmt::format("flow-{}-{}-{}-{}-{}", start.id().run(), start.id().unit(),
                           start.id().attempt(), start.id().epoch(), start.id().rank());
  order.directory = start.dir();
  order.variables_file = container_variables_path(attempt_.state_dir(), ::getpid());
  order.read_only = attempt_.outside_inputs();
  if (std::string file = start.dir() + ".command"; ::access(file.c_str(), R_OK) == 0)
    order.read_only.push_back(file);
  if (!environment_.text.empty()) {
    FLOW_TRY(write_file_atomic(environment_.setup.stage_file, kShellStage));
    order.writable.push_back(environment_.setup.stage_file);
  }
  order.memory_bytes = start.memory_bytes();
  order.gpus.assign(start.gpus().begin(), start.gpus().end());
  order.has_cdi = has_cdi();
  order.user = ::geteuid();
  order.group = ::getegid();
  order.command = shell;
  auto variables = own_variables(what.environment);
  FLOW_TRY(write_file_atomic(order.variables_file,
                             variables_text(*environment_.runtime, variables, order.inherited)));
  auto words = container_words(*environment_.runtime, order);
  FLOW_TRY(words);
  what.environment = *attempt_.link().environment(start.id().run());
  for (const std::string& name : order.inherited) what.environment[name] = variables[name];
  if (auto slot = variables.find("FLOW_SLOT"); slot != variables.end())
    what.environment["FLOW_SLOT"] = slot->second;
  if (environment_.runtime->has_own_processes()) {
    record_ = {environment_.runtime->program, order.name, runtime_variables(what.environment)};
    std::string path = container_record_path(attempt_.state_dir(), ::getpid());
    remove_container(path);  // of an earlier attempt, which could not remove it
    FLOW_TRY(write_file_atomic(path, encode_container_record(record_)));
  }
  what.words = std::move(*words);
  what.program = what.words.front();
  return {};
}

std::optional<core::Failure> setup_failure(const Attempt& attempt,
                                           const OpenEnvironment& environment, int status,
                                           const std::string& again, const std::string& evidence) {
  if (environment.text.empty()) {  // a shell that writes no stage
    bool is_of_runtime =
        environment.runtime && WIFEXITED(status) && WEXITSTATUS(status) == kRuntimeFailed;
    if (!is_of_runtime) return std::nullopt;
    return container_failure(attempt, environment, kRuntimeFailed, again, evidence);
  }
  auto stage = read_file(stage_file(attempt.start().dir()));
  if (!stage.ok() || stage->empty()) return std::nullopt;
  bool is_signal = WIFSIGNALED(status);
  if (*stage == kShellStage) {
    if (is_signal || WEXITSTATUS(status) == 128 + SIGKILL) return std::nullopt;
    return container_failure(attempt, environment, WEXITSTATUS(status), again, evidence);
  }
  core::Failure failure;
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
