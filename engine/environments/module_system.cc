#include "engine/environments/module_system.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/environments/command_output.hpp"
#include "engine/environments/shell_setup.hpp"
#include "engine/process/run_command.hpp"

namespace flow {

namespace {

constexpr int64_t kLoadLimitMs = 60'000;
// Of Debian's packages, of Red Hat's, and of Lmod's own installation.
constexpr const char* kUsualFolders[] = {
    "/usr/share/lmod/lmod", "/usr/share/modules",  "/usr/share/Modules",
    "/usr/local/lmod/lmod", "/opt/apps/lmod/lmod", "/usr/local/Modules",
};

std::string value_of(const EnvironmentVariables& variables, const char* name) {
  for (const auto& [each, value] : variables) {
    if (each == name) return value;
  }
  return "";
}

}  // namespace

std::string find_module_init(const std::vector<std::string>& shell,
                             const EnvironmentVariables& variables) {
  std::string program = std::filesystem::path(shell.front()).filename().string();
  if (program == "dash" || program == "ash") program = "sh";
  if (program == "mksh") program = "ksh";
  std::vector<std::string> folders;
  for (const char* name : {"LMOD_PKG", "MODULESHOME"}) {
    if (std::string folder = value_of(variables, name); !folder.empty()) folders.push_back(folder);
  }
  folders.insert(folders.end(), std::begin(kUsualFolders), std::end(kUsualFolders));
  for (const std::string& folder : folders) {
    std::string script = folder + "/init/" + program;
    if (::access(script.c_str(), R_OK) == 0) return script;
  }
  return "";
}

Status try_modules(const CommandEnvironment& environment, const std::vector<std::string>& shell,
                   const EnvironmentVariables& variables) {
  ShellSetup setup;
  setup.module_init = find_module_init(shell, variables);
  if (setup.module_init.empty())
    return user_error(
        "there is no module system on this machine: install Lmod or environment-modules, or set "
        "MODULESHOME to its folder");
  auto folder = make_temporary_folder();
  FLOW_TRY(folder);
  setup.stage_file = **folder + "/stage";
  CommandEnvironment modules;
  modules.modules = environment.modules;
  std::string path = value_of(variables, "PATH");
  std::vector<std::string> words = shell;
  if (words.front().find('/') == std::string::npos)
    words.front() = find_in_path(words.front(), &path);
  words.push_back(setup_text(modules, setup));
  auto result = run_command(words, kLoadLimitMs, variables);
  FLOW_TRY(result);
  if (result->code == 0) return {};
  auto stage = read_file(setup.stage_file);
  return user_error(fmt::format("{} cannot be loaded: {}", stage_text(stage.ok() ? *stage : ""),
                                last_lines(result->err + result->out)));
}

}  // namespace flow
