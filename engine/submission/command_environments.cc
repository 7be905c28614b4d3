#include "engine/submission/command_environments.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "engine/base/files.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/environments/containers.hpp"
#include "engine/environments/module_system.hpp"
#include "engine/environments/package_builds.hpp"
#include "engine/environments/shell_setup.hpp"
#include "engine/process/run_command.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kPackagesFileMax = 1 << 20;
constexpr int64_t kPythonLimitMs = 60'000;

std::string where(const TaskDef& def) {
  return fmt::format("{}:{}: the task `{}`", def.file, def.line, def.name);
}

/// The submitter's variables with the literals of the task.
EnvironmentVariables variables_of(const TaskDef& def, const EnvironmentVariables& variables) {
  EnvironmentVariables all = variables;
  for (const EnvEntry& entry : def.env) {
    if (entry.from_submitter) continue;
    std::erase_if(all, [&](const auto& each) { return each.first == entry.name; });
    all.emplace_back(entry.name, entry.value);
  }
  return all;
}

std::string program_in(const std::string& name, const EnvironmentVariables& variables) {
  const std::string* path = nullptr;
  for (const auto& [each, value] : variables) {
    if (each == "PATH") path = &value;
  }
  return find_in_path(name, path);
}

/// Text that runs in the task's own shell needs one that understands it.
Status check_shell_of(const TaskDef& def) {
  const CommandEnvironment& environment = def.shell.environment;
  bool has_text = !environment.before.empty() || !environment.modules.empty();
  if (!has_text || reads_shell_text(def.shell.shell)) return {};
  return user_error(fmt::format(
      "{} has `{}`, which its shell `{}` does not understand: use "
      "bash or sh as its `shell`",
      where(def), environment.before.empty() ? "modules" : "before", def.shell.shell.front()));
}

/// Whether the name is one of a file, and not one of a prefix.
bool names_file(const std::string& path) {
  std::string suffix = fs::path(path).extension().string();
  for (const char* each : {".txt", ".yml", ".yaml", ".lock", ".in"}) {
    if (suffix == each) return true;
  }
  return false;
}

Status resolve_packages(const TaskDef& def, const char* option, const std::string& root,
                        PackageEnvironment& packages) {
  if (packages.source.empty()) return {};
  packages.path = (fs::path(root) / packages.source).lexically_normal().string();
  while (packages.path.size() > 1 && packages.path.ends_with('/')) packages.path.pop_back();
  struct stat info {};
  bool exists = ::stat(packages.path.c_str(), &info) == 0;
  if (!exists && names_file(packages.path))
    return user_error(fmt::format("{} has `{} = \"{}\"`, and there is no file `{}`", where(def),
                                  option, packages.source, packages.path));
  packages.is_file = exists && S_ISREG(info.st_mode);
  if (!packages.is_file) return {};
  auto content = read_file(packages.path, kPackagesFileMax);
  if (!content.ok())
    return user_error(fmt::format("{} has `{}`: {}", where(def), option, content.error().message));
  packages.content = std::move(*content);
  return {};
}

/// The version of the machine's python3.
Result<std::string> python_version(const TaskDef& def, const EnvironmentVariables& variables) {
  std::string python = program_in("python3", variables);
  if (python.empty())
    return user_error(where(def) +
                      " has `venv`, and python3 was not found in "
                      "PATH: install it to build one");
  auto result = run_command({python, "-c", "import platform; print(platform.python_version())"},
                            kPythonLimitMs, variables);
  FLOW_TRY(result);
  std::string version = result->out.substr(0, result->out.find('\n'));
  if (result->code == 0 && !version.empty()) return version;
  return user_error(
      fmt::format("{} has `venv`, and `{}` does not run: {}", where(def), python, result->err));
}

Status resolve_venv(TaskDef& def, const std::string& root, const EnvironmentVariables& variables,
                    std::map<std::string, std::string>& versions) {
  CommandEnvironment& environment = def.shell.environment;
  FLOW_TRY(resolve_packages(def, "venv", root, environment.venv));
  if (!environment.venv.is_file) return {};
  std::string outside = outside_reference(environment.venv.content);
  if (!outside.empty())
    return user_error(fmt::format("{} has `venv = \"{}\"`: {}. Write all packages into one file",
                                  where(def), environment.venv.source, outside));
  EnvironmentVariables own = variables_of(def, variables);
  std::string& version = versions[program_in("python3", own)];
  if (version.empty()) {
    auto found = python_version(def, own);
    FLOW_TRY(found);
    version = std::move(*found);
  }
  environment.python_version = version;
  return {};
}

Status resolve_sif(TaskDef& def, const std::string& root) {
  CommandEnvironment& environment = def.shell.environment;
  environment.image_path = (fs::path(root) / environment.container).lexically_normal().string();
  auto content = sha256_file(environment.image_path);
  if (!content.ok())
    return user_error(fmt::format("{} has `container = \"{}\"`: {}", where(def),
                                  environment.container, content.error().message));
  environment.image = content->digest.hex();
  return {};
}

/// An image that is only named is resolved once per run, so that all attempts
/// use the same.
Status resolve_container(TaskDef& def, const std::string& root,
                         const EnvironmentVariables& variables, bool is_preview,
                         std::map<std::string, std::string>& images) {
  CommandEnvironment& environment = def.shell.environment;
  if (environment.container.empty()) return {};
  if (environment.container.find("://") == std::string::npos) return resolve_sif(def, root);
  std::string& image = images[environment.container];
  auto runtime = find_runtime(environment.container, variables);
  if (image.empty() && runtime) {
    auto id = image_id(*runtime, environment.container, variables, !is_preview);
    if (!id.ok() && !is_preview)
      return user_error(fmt::format("{}: {}", where(def), id.error().message));
    if (id.ok()) image = std::move(*id);
  }
  environment.image = image;
  return {};
}

/// What this machine lacks for the environment, or "".
std::string lack_of(const TaskDef& def, const EnvironmentVariables& variables) {
  const CommandEnvironment& environment = def.shell.environment;
  for (const PackageEnvironment* packages : {&environment.venv, &environment.conda}) {
    if (packages->source.empty() || packages->is_file) continue;
    if (::access((packages->path + "/bin").c_str(), X_OK) != 0)
      return fmt::format("`{}` is no environment: it has no folder `bin`", packages->path);
  }
  if (environment.conda.is_file) {
    EnvironmentVariables own = variables_of(def, variables);
    bool is_there = std::ranges::any_of(
        kCondaPrograms, [&](const char* name) { return !program_in(name, own).empty(); });
    if (!is_there)
      return "neither conda, mamba nor micromamba was found in PATH: install "
             "one";
  }
  if (!environment.container.empty() && !find_runtime(environment.container, variables))
    return fmt::format("`{}` needs {}, and none is in PATH: install one", environment.container,
                       runtimes_of(environment.container));
  return "";
}

}  // namespace

Result<bool> resolve_environments(Plan& plan, const std::string& root,
                                  const EnvironmentVariables& variables, bool is_preview) {
  bool has_any = false;
  std::map<std::string, std::string> versions;  // by the path of python3
  std::map<std::string, std::string> images;    // by name
  for (TaskDef& def : plan.defs) {
    CommandEnvironment& environment = def.shell.environment;
    if (environment.is_empty()) continue;
    has_any = true;
    FLOW_TRY(check_shell_of(def));
    FLOW_TRY(resolve_venv(def, root, variables, versions));
    FLOW_TRY(resolve_packages(def, "conda", root, environment.conda));
    FLOW_TRY(resolve_container(def, root, variables, is_preview, images));
  }
  return has_any;
}

void check_environments(const Plan& plan, const std::vector<bool>& is_called,
                        const EnvironmentVariables& variables, std::vector<Error>& errors) {
  std::set<std::tuple<std::vector<std::string>, std::vector<std::string>, EnvironmentVariables>>
      tried;
  for (size_t i = 0; i < plan.defs.size(); i++) {
    const TaskDef& def = plan.defs[i];
    const CommandEnvironment& environment = def.shell.environment;
    if (!is_called[i] || environment.is_empty()) continue;
    if (std::string lack = lack_of(def, variables); !lack.empty())
      errors.push_back(user_error(fmt::format("{}: {}", where(def), lack)));
    if (environment.modules.empty()) continue;
    EnvironmentVariables own = variables_of(def, variables);  // such as MODULEPATH
    if (!tried.insert({environment.modules, def.shell.shell, own}).second) continue;
    if (Status loaded = try_modules(environment, def.shell.shell, own); !loaded.ok())
      errors.push_back(user_error(fmt::format("{}: {}", where(def), loaded.error().message)));
  }
}

}  // namespace flow
