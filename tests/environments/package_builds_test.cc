// Keys and command lines of environments that flow builds.
#include "engine/environments/package_builds.hpp"

#include <catch2/catch.hpp>

namespace flow {

namespace {

using Commands = std::vector<std::vector<std::string>>;

}  // namespace

TEST_CASE("an environment of a file is built, a prefix is not") {
  CommandEnvironment environment;
  environment.python_version = "3.11.2";
  environment.venv = {"a/requirements.txt", "/p/a/requirements.txt", "numpy\n", true};
  environment.conda = {"/opt/conda", "/opt/conda", "", false};
  auto builds = package_builds(environment);
  REQUIRE(builds.size() == 1);
  CHECK(builds[0].tool == PackageTool::pip);
  CHECK(builds[0].file_name == "requirements.txt");
  CHECK(builds[0].content == "numpy\n");
  CHECK(builds[0].python_version == "3.11.2");
}

TEST_CASE("the key of a build has its content, its Python and its tool") {
  PackageBuild build{PackageTool::pip, "r.txt", "numpy\n", "3.11.2"};
  PackageBuild renamed = build, other_text = build, other_python = build, of_conda = build;
  renamed.file_name = "other.txt";
  other_text.content = "numpy==1\n";
  other_python.python_version = "3.12.0";
  of_conda.tool = PackageTool::conda;
  CHECK(build_key(build).size() == 64);
  CHECK(build_key(renamed) == build_key(build));
  CHECK(build_key(other_text) != build_key(build));
  CHECK(build_key(other_python) != build_key(build));
  CHECK(build_key(of_conda) != build_key(build));
}

TEST_CASE("pip installs the requirements into a new venv") {
  PackageBuild build{PackageTool::pip, "r.txt", "numpy\n", "3.11.2"};
  CHECK(build_commands(build, "/usr/bin/python3", "/e/r.txt", "/e/prefix") ==
        Commands{{"/usr/bin/python3", "-m", "venv", "/e/prefix"},
                 {"/e/prefix/bin/python", "-m", "pip", "install", "--disable-pip-version-check",
                  "--no-input", "--requirement", "/e/r.txt"}});
  CHECK(list_command(build, "/usr/bin/python3", "/e/prefix") ==
        std::vector<std::string>{"/e/prefix/bin/python", "-m", "pip", "freeze",
                                 "--disable-pip-version-check"});
}

TEST_CASE("conda creates an environment from a description or from an explicit list") {
  PackageBuild described{PackageTool::conda, "e.yml", "dependencies: [zlib]\n", ""};
  PackageBuild listed{PackageTool::conda, "e.lock", "# a lock\n@EXPLICIT\nhttps://x/z.conda\n", ""};
  CHECK(
      build_commands(described, "/opt/bin/conda", "/e/e.yml", "/e/prefix") ==
      Commands{{"/opt/bin/conda", "env", "create", "--prefix", "/e/prefix", "--file", "/e/e.yml"}});
  Commands created{
      {"/opt/bin/conda", "create", "--yes", "--prefix", "/e/prefix", "--file", "/e/e.lock"}};
  CHECK(build_commands(listed, "/opt/bin/conda", "/e/e.lock", "/e/prefix") == created);
  CHECK(build_commands(described, "/opt/bin/micromamba", "/e/e.yml", "/e/prefix") ==
        Commands{{"/opt/bin/micromamba", "create", "--yes", "--prefix", "/e/prefix", "--file",
                  "/e/e.yml"}});
  CHECK(list_command(listed, "/opt/bin/conda", "/e/prefix") ==
        std::vector<std::string>{"/opt/bin/conda", "list", "--prefix", "/e/prefix", "--explicit"});
}

TEST_CASE("requirements that refer to other files have no key") {
  CHECK(outside_reference("numpy==1.26\n# -r is a comment\n--index-url https://x/simple\n"
                          "pkg @ file:///opt/pkg.whl\n") == "");
  CHECK(outside_reference("numpy\n  -r more.txt\n") ==
        "its line `-r more.txt` refers to another file, whose content is not in the key");
  CHECK_FALSE(outside_reference("./local\n").empty());
  CHECK_FALSE(outside_reference("--constraint=c.txt").empty());
  CHECK_FALSE(outside_reference("-e .").empty());
}

}  // namespace flow
