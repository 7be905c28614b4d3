// The environment of a run or a process, as it is passed between processes.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace flow {

using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;  // name, value

}  // namespace flow
