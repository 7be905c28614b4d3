// The text that runs before a command, and the variables of a prefix.
#include "engine/environments/shell_setup.hpp"

#include <catch2/catch.hpp>

#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/process/run_command.hpp"

namespace flow {

namespace {

/// Runs the text and `command` in bash as an attempt does. Returns the output and the stage.
std::pair<CommandResult, std::string> run(const CommandEnvironment& environment, ShellSetup setup,
                                          const std::string& command) {
  auto folder = make_temporary_folder();
  setup.stage_file = **folder + "/stage of 'it'";
  auto result = run_command(
      {"bash", "-euo", "pipefail", "-c", setup_text(environment, setup) + command}, 60'000);
  REQUIRE(result.ok());
  auto stage = read_file(setup.stage_file);
  return {*result, stage.ok() ? *stage : "none"};
}

/// A script that defines `module`: it loads all but `nope`, and reads a variable that is not set.
std::string fake_module_system(const std::string& folder) {
  std::string script = folder + "/init";
  REQUIRE(write_file_atomic(script,
                            "module() {\n"
                            "  : $FLOW_NOT_SET\n"
                            "  [ \"$2\" = nope ] && { echo no such module >&2; return 1; }\n"
                            "  export LOADED=\"${LOADED-}$1 $2;\" PATH=/of/module:$PATH\n"
                            "}\n")
              .ok());
  return script;
}

}  // namespace

TEST_CASE("a command without an environment has no text before it") {
  CHECK(setup_text({}, {}) == "");
  ShellSetup venv;
  venv.venv = "/opt/venv";
  CommandEnvironment environment;
  environment.venv.source = "/opt/venv";
  CHECK(setup_text(environment, venv) == "");  // its variables are enough
}

TEST_CASE("`before` runs in the shell of the command and leaves no stage") {
  CommandEnvironment environment;
  environment.before = "greeting=hello\nname() { echo \"$greeting it's me\"; }";
  auto [result, stage] = run(environment, {}, "name");
  CHECK(result.code == 0);
  CHECK(result.out == "hello it's me\n");
  CHECK(stage == "");
}

TEST_CASE("a `before` that fails or exits leaves its stage") {
  CommandEnvironment environment;
  environment.before = "false";
  auto failed = run(environment, {}, "echo reached");
  CHECK(failed.first.code == 1);
  CHECK(failed.first.out == "");
  CHECK(failed.second == "before");
  environment.before = "exit 0";
  auto ended = run(environment, {}, "echo reached");
  CHECK(ended.first.out == "");
  CHECK(ended.second == "before");
  CHECK(stage_text("before") == "`before`");
  CHECK_FALSE(is_of_machine("before"));
}

TEST_CASE("modules are loaded in order, and the shell's options are as before") {
  auto folder = make_temporary_folder();
  ShellSetup setup;
  setup.module_init = fake_module_system(**folder);
  CommandEnvironment environment;
  environment.modules = {"gcc/12.3", "cuda 12"};
  auto [result, stage] = run(environment, setup, "echo $LOADED $-; [ -z \"$FLOW_NOT_SET\" ]");
  CHECK(result.out.starts_with("load gcc/12.3;load cuda 12; "));
  CHECK(result.out.find('e') != std::string::npos);
  CHECK(result.code != 0);  // -u
  CHECK(stage == "");
}

TEST_CASE("a module that cannot be loaded is named by the stage") {
  auto folder = make_temporary_folder();
  ShellSetup setup;
  setup.module_init = fake_module_system(**folder);
  CommandEnvironment environment;
  environment.modules = {"gcc/12.3", "nope", "never"};
  auto [result, stage] = run(environment, setup, "echo reached");
  CHECK(result.code == 1);
  CHECK(result.out == "");
  CHECK(result.err == "no such module\n");
  CHECK(stage == "module nope");
  CHECK(stage_text(stage) == "the module `nope`");
  CHECK(is_of_machine(stage));
}

TEST_CASE("a prefix comes before what modules add to PATH") {
  auto folder = make_temporary_folder();
  ShellSetup setup;
  setup.module_init = fake_module_system(**folder);
  setup.venv = "/opt/my venv";
  setup.conda = "/opt/conda";
  CommandEnvironment environment;
  environment.modules = {"gcc"};
  auto [result, stage] = run(environment, setup, "echo \"${PATH%%/of/module*}\"");
  CHECK(result.out == "/opt/my venv/bin:/opt/conda/bin:\n");
}

TEST_CASE("the activation scripts of conda's packages run") {
  auto folder = make_temporary_folder();
  ShellSetup setup;
  setup.conda = **folder;
  REQUIRE(make_dirs(**folder + "/etc/conda/activate.d").ok());
  REQUIRE(
      write_file_atomic(**folder + "/etc/conda/activate.d/a.sh", "export GDAL=${GDAL_UNSET}data\n")
          .ok());
  auto [result, stage] = run({}, setup, "echo $GDAL");
  CHECK(result.out == "data\n");
}

TEST_CASE("prefixes are activated by variables") {
  ShellSetup setup;
  setup.venv = "/v";
  setup.conda = "/c";
  std::map<std::string, std::string> variables{{"PATH", "/bin"}, {"PYTHONHOME", "/x"}};
  activate(setup, variables);
  CHECK(variables == std::map<std::string, std::string>{{"PATH", "/v/bin:/c/bin:/bin"},
                                                        {"CONDA_PREFIX", "/c"},
                                                        {"CONDA_DEFAULT_ENV", "/c"},
                                                        {"VIRTUAL_ENV", "/v"}});
}

TEST_CASE("only POSIX shells with a command's flag run such text") {
  CHECK(reads_shell_text({"bash", "-euo", "pipefail", "-c"}));
  CHECK(reads_shell_text({"/bin/sh", "-ec"}));
  CHECK_FALSE(reads_shell_text({"python3", "-c"}));
  CHECK_FALSE(reads_shell_text({"bash"}));
  CHECK_FALSE(reads_shell_text({}));
}

}  // namespace flow
