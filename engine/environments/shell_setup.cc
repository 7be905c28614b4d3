#include "engine/environments/shell_setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/files.hpp"

namespace flow {

namespace {

constexpr std::string_view kModuleStage = "module ", kModulesStage = "modules",
                           kBeforeStage = "before", kCondaStage = "conda";

std::string mark(const ShellSetup& setup, std::string_view stage) {
  return fmt::format("printf %s {} >| {}\n", quote_shell(stage), quote_shell(setup.stage_file));
}

// Scripts of module systems and packages read variables that are not set.
constexpr const char* kLenient = "flow_flags=$-; set +eu\n";
constexpr const char* kStrict =
    "case $flow_flags in *e*) set -e;; esac; case $flow_flags in *u*) set -u;; esac\n"
    "unset flow_flags\n";

std::string modules_text(const CommandEnvironment& environment, const ShellSetup& setup) {
  std::string text = mark(setup, kModulesStage) + kLenient;
  text += fmt::format(". {} || exit 1\n", quote_shell(setup.module_init));
  for (const std::string& name : environment.modules) {
    text += mark(setup, fmt::format("{}{}", kModuleStage, name));
    text += fmt::format("module load {} || exit 1\n", quote_shell(name));
  }
  return text + kStrict;
}

// Modules change PATH, so the environments are activated after them.
std::string activation_text(const ShellSetup& setup) {
  std::string text;
  for (const std::string* prefix : {&setup.conda, &setup.venv}) {
    if (!prefix->empty()) text += fmt::format("PATH={}:$PATH\n", quote_shell(*prefix + "/bin"));
  }
  return text;
}

// Packages of conda have scripts that set their variables.
std::string conda_text(const ShellSetup& setup) {
  std::string scripts = quote_shell(setup.conda + "/etc/conda/activate.d");
  return mark(setup, kCondaStage) + kLenient +
         fmt::format(
             "for flow_script in {}/*.sh; do\n"
             "  if [ -r \"$flow_script\" ]; then . \"$flow_script\"; fi\n"
             "done\n"
             "unset flow_script\n",
             scripts) +
         kStrict;
}

}  // namespace

std::string setup_text(const CommandEnvironment& environment, const ShellSetup& setup) {
  std::string text;
  if (!environment.modules.empty())
    text += modules_text(environment, setup) + activation_text(setup);
  if (!setup.conda.empty()) text += conda_text(setup);
  if (!environment.before.empty()) {
    text += mark(setup, kBeforeStage) + environment.before;
    if (!text.ends_with('\n')) text += '\n';
  }
  bool marks_start = !text.empty() || !environment.container.empty();
  if (marks_start) text += fmt::format(": >| {}\n", quote_shell(setup.stage_file));
  return text;
}

void activate(const ShellSetup& setup, std::map<std::string, std::string>& variables) {
  auto prepend = [&](const std::string& prefix) {
    std::string& path = variables.try_emplace("PATH", "/usr/local/bin:/usr/bin:/bin").first->second;
    path = prefix + "/bin:" + path;
  };
  if (!setup.conda.empty()) {
    prepend(setup.conda);
    variables["CONDA_PREFIX"] = setup.conda;
    variables["CONDA_DEFAULT_ENV"] = setup.conda;
  }
  if (setup.venv.empty()) return;
  prepend(setup.venv);
  variables["VIRTUAL_ENV"] = setup.venv;
  variables.erase("PYTHONHOME");
}

std::string stage_text(std::string_view stage) {
  if (stage.starts_with(kModuleStage))
    return fmt::format("the module `{}`", stage.substr(kModuleStage.size()));
  if (stage == kModulesStage) return "the module system's script";
  if (stage == kCondaStage) return "a script in etc/conda/activate.d";
  return "`before`";
}

bool is_of_machine(std::string_view stage) { return stage != kBeforeStage; }

bool reads_shell_text(const std::vector<std::string>& shell) {
  if (shell.size() < 2) return false;
  std::string program = std::filesystem::path(shell.front()).filename().string();
  bool is_known = false;
  for (const char* each : {"bash", "sh", "dash", "ash", "ksh", "mksh", "zsh"})
    is_known = is_known || program == each;
  return is_known && shell.back().starts_with('-') && shell.back().ends_with('c');
}

}  // namespace flow
