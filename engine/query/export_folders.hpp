// Where the files of a run's result are copied to: a node with a tag and an instance of a map have
// a folder of their own.
#pragma once
#include <string>
#include <vector>

#include "engine/core/core.hpp"

namespace flow {

/// For each file of `result`, the run's result, its folder relative to the target, in the order of
/// lists and then fields; "" for the target itself. "align/s3" for what `align[s3]` returned,
/// "align/2" for `align[2]`. What a Lua task returned deeper keeps its path below that.
std::vector<std::string> export_folders(const core::Run& run, const Value& result);

}  // namespace flow
