// A pipeline in Lua from a workflow.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/exports/wfformat_reader.hpp"

namespace flow {

/// The first line of the command of each task of an imported workflow. Its arguments are those of
/// kImportedArguments, and an export takes id and command from them.
constexpr const char* kImportedMark = "# A task of an imported workflow.";

struct PipelineFiles {
  std::string script;  // pipeline.lua
  std::string tasks;   // tasks.lua, which the script requires; "": the script has the tasks itself
  /// Files that the workflow does not make, below `inputs`: name and text.
  std::vector<std::pair<std::string, std::string>> inputs;
};

/// `source` names the workflow's file in comments. `scale`: see ImportOptions.
PipelineFiles pipeline_of(const Workflow& workflow, const std::string& source, double scale);

/// `text` as a string literal of Lua: in long brackets if it has several lines and only printable
/// characters, else in quotes.
std::string lua_literal(const std::string& text);
/// Where a task finds the file of this id in its working folder: a relative path that does not lead
/// out of it.
std::string local_name(const std::string& id);

}  // namespace flow
