// Environments that flow builds from a file of packages: their keys, their places and the commands
// that build them. Pure.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.hpp"

namespace flow {

enum class PackageTool : uint8_t { pip, conda };

/// How to build one environment.
struct PackageBuild {
  PackageTool tool = PackageTool::pip;
  std::string file_name;       // of the file, without its folder
  std::string content;         // of the file
  std::string python_version;  // pip: the version that builds it
};

/// Of an environment that is built from a file; nothing for a prefix.
std::vector<PackageBuild> package_builds(const CommandEnvironment& environment);
/// The name of its folder below STATE/environments: equal for equal content, tool and Python.
std::string build_key(const PackageBuild& build);

/// Commands that build `prefix` from the file at `path`, in order; `program` is python3, or a conda
/// with its name as the last part of its path.
std::vector<std::vector<std::string>> build_commands(const PackageBuild& build,
                                                     const std::string& program,
                                                     const std::string& path,
                                                     const std::string& prefix);
/// The command that lists the packages of `prefix`.
std::vector<std::string> list_command(const PackageBuild& build, const std::string& program,
                                      const std::string& prefix);

/// Why the requirements cannot be keyed by their own text, or "": a line refers to another file.
std::string outside_reference(std::string_view requirements);

constexpr const char* kCondaPrograms[] = {"conda", "mamba", "micromamba"};

}  // namespace flow
