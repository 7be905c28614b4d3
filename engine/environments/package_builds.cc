#include "engine/environments/package_builds.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "flow/digest.hpp"

namespace flow {

namespace {

std::string file_name_of(const PackageEnvironment& packages) {
  return std::filesystem::path(packages.path).filename().string();
}

/// An explicit list of conda packages, as `conda list --explicit` prints it.
bool is_explicit(const PackageBuild& build) {
  return build.content.starts_with("@EXPLICIT\n") ||
         build.content.find("\n@EXPLICIT\n") != std::string::npos;
}

bool is_micromamba(const std::string& program) {
  return std::filesystem::path(program).filename() == "micromamba";
}

}  // namespace

std::vector<PackageBuild> package_builds(const CommandEnvironment& environment) {
  std::vector<PackageBuild> builds;
  const PackageEnvironment &venv = environment.venv, &conda = environment.conda;
  if (venv.is_file)
    builds.push_back(
        {PackageTool::pip, file_name_of(venv), venv.content, environment.python_version});
  if (conda.is_file) builds.push_back({PackageTool::conda, file_name_of(conda), conda.content, ""});
  return builds;
}

std::string build_key(const PackageBuild& build) {
  bool is_pip = build.tool == PackageTool::pip;
  std::string text = is_pip ? "pip\n" + build.python_version : "conda";
  return sha256(text + "\n" + build.content).hex();
}

std::vector<std::vector<std::string>> build_commands(const PackageBuild& build,
                                                     const std::string& program,
                                                     const std::string& path,
                                                     const std::string& prefix) {
  if (build.tool == PackageTool::pip)
    return {{program, "-m", "venv", prefix},
            {prefix + "/bin/python", "-m", "pip", "install", "--disable-pip-version-check",
             "--no-input", "--requirement", path}};
  bool is_plain_list = is_explicit(build) || is_micromamba(program);
  if (is_plain_list) return {{program, "create", "--yes", "--prefix", prefix, "--file", path}};
  return {{program, "env", "create", "--prefix", prefix, "--file", path}};
}

std::vector<std::string> list_command(const PackageBuild& build, const std::string& program,
                                      const std::string& prefix) {
  if (build.tool == PackageTool::pip)
    return {prefix + "/bin/python", "-m", "pip", "freeze", "--disable-pip-version-check"};
  return {program, "list", "--prefix", prefix, "--explicit"};
}

std::string outside_reference(std::string_view requirements) {
  while (!requirements.empty()) {
    size_t end = std::min(requirements.find('\n'), requirements.size());
    std::string_view line = requirements.substr(0, end);
    requirements.remove_prefix(std::min(end + 1, requirements.size()));
    size_t first = line.find_first_not_of(" \t");
    if (first == line.npos) continue;
    line.remove_prefix(first);
    for (const char* option :
         {"-r", "-c", "-e", "--requirement", "--constraint", "--editable", "./", "../", "file:."}) {
      if (!line.starts_with(option)) continue;
      return fmt::format("its line `{}` refers to another file, whose content is not in the key",
                         line);
    }
  }
  return "";
}

}  // namespace flow
