#include "engine/executor/built_environment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/environments/environment_store.hpp"
#include "engine/process/child.hpp"
#include "engine/process/run_command.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr int kTickMs = 50;
constexpr int64_t kShortLimitMs = 60'000;
constexpr size_t kTailMax = 4000;

Error was_stopped() { return environment_error("the attempt was asked to stop"); }

/// Waits until no other process builds it.
Status acquire(Attempt& attempt, const EnvironmentLock& lock) {
  while (true) {
    auto is_free = lock.try_acquire();
    FLOW_TRY(is_free);
    if (*is_free) return {};
    if (attempt.link().terminated()) return was_stopped();
    ::usleep(kTickMs * 1000);
  }
}

std::string tail_of(const std::string& path) {
  auto text = read_file(path);
  if (!text.ok()) return "";
  while (text->ends_with('\n')) text->pop_back();
  return text->size() > kTailMax ? "…" + text->substr(text->size() - kTailMax) : *text;
}

/// Runs a command of a build to its end. Its output is appended to the file `log`.
Status run_step(Attempt& attempt, const std::vector<std::string>& words, const std::string& log) {
  auto child = Child::spawn(words, {-1, -1, -1, log});
  FLOW_TRY(child);
  while (!(*child)->ends_within(kTickMs)) {
    if (!attempt.link().terminated()) continue;
    (*child)->kill_group();
    return was_stopped();
  }
  int code = (*child)->reap();
  if (code == 0) return {};
  std::string command;
  for (const std::string& word : words) command += (command.empty() ? "" : " ") + word;
  return user_error(fmt::format("`{}` ended with exit code {}:\n{}", command, code, tail_of(log)));
}

/// The program that builds it on this machine.
Result<std::string> find_builder(Attempt& attempt, const PackageBuild& build) {
  auto variables = attempt.environment();
  if (build.tool == PackageTool::conda) {
    for (const char* name : kCondaPrograms) {
      std::string program = find_program(name, variables);
      if (!program.empty()) return program;
    }
    return environment_error(
        "neither conda, mamba nor micromamba is in PATH on this machine: install one");
  }
  std::string python = find_program("python3", variables);
  if (python.empty())
    return environment_error("python3 is not in PATH on this machine: install it");
  auto result = run_command({python, "-c", "import platform; print(platform.python_version())"},
                            kShortLimitMs);
  FLOW_TRY(result);
  std::string version = result->out.substr(0, result->out.find('\n'));
  if (version == build.python_version) return python;
  return environment_error(fmt::format(
      "the run was submitted with Python {}, and `{}` on this machine is Python {}: install that "
      "version, or set PATH in `env` so that python3 is the same on all machines",
      build.python_version, python, version));
}

/// The environment is usable without the list.
Status write_packages(Attempt& attempt, const PackageBuild& build, const std::string& program,
                      const std::string& folder) {
  auto list = run_command(list_command(build, program, folder + "/prefix"), kShortLimitMs);
  if (!list.ok() || list->code != 0)
    attempt.warn(fmt::format("the packages of the environment of `{}` could not be listed: {}",
                             build.file_name, list.ok() ? list->err : list.error().message));
  return write_file_atomic(folder + "/packages.txt", list.ok() ? list->out : "");
}

/// Builds into a new folder and returns its name.
Result<std::string> build_folder(Attempt& attempt, const PackageBuild& build,
                                 const std::string& environments, const std::string& key) {
  auto program = find_builder(attempt, build);
  FLOW_TRY(program);
  std::string name = key + "." + random_name(), folder = environments + "/" + name;
  FLOW_TRY(make_dirs(folder));
  std::string file = folder + "/" + build.file_name;
  FLOW_TRY(write_file_atomic(file, build.content));
  Status built;
  for (const auto& words : build_commands(build, *program, file, folder + "/prefix")) {
    if (built.ok()) built = run_step(attempt, words, folder + "/build.log");
  }
  if (built.ok()) built = write_packages(attempt, build, *program, folder);
  if (built.ok()) return name;
  (void)remove_tree(folder);
  Error error = built.error();
  error.message =
      fmt::format("the environment of `{}` cannot be built: {}", build.file_name, error.message);
  return error;
}

/// The first attempt of a run that uses it logs its packages.
void log_packages(Attempt& attempt, const PackageBuild& build, const std::string& key,
                  const std::string& folder) {
  constexpr size_t kKeyShown = 16;
  std::string mark =
      fmt::format("{}/environment-{}", fs::path(attempt.start().dir()).parent_path().string(),
                  key.substr(0, kKeyShown));
  int made = ::open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (made < 0) return;
  ::close(made);
  auto packages = read_file(folder + "/packages.txt");
  attempt.log_stream(0,
                     fmt::format("the environment of `{}` is {}/prefix", build.file_name, folder));
  if (!packages.ok()) return;
  while (packages->ends_with('\n')) packages->pop_back();
  if (!packages->empty()) attempt.log_stream(0, *packages);
}

}  // namespace

Result<std::string> built_prefix(Attempt& attempt, const PackageBuild& build) {
  std::string environments = attempt.state_dir() + "/environments", key = build_key(build);
  FLOW_TRY(make_dirs(environments));
  std::string folder = finished_environment(environments, key);
  if (folder.empty()) {
    EnvironmentLock lock(environments, key);
    FLOW_TRY(acquire(attempt, lock));
    folder = finished_environment(environments, key);
    if (folder.empty()) {
      remove_unfinished_environments(environments, key);
      auto name = build_folder(attempt, build, environments, key);
      FLOW_TRY(name);
      FLOW_TRY(publish_environment(environments, key, *name));
      folder = environments + "/" + *name;
    }
  }
  log_packages(attempt, build, key, folder);
  return folder + "/prefix";
}

}  // namespace flow
