// Reads a workflow in WfFormat 1.5 (wfcommons.org) and checks all that an importer relies on.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow {

struct WorkflowFile {
  std::string id;
  int64_t size = -1;  // in bytes; -1: not given
};

struct WorkflowTask {
  std::string id, name;
  std::string command;  // for a shell; "": the workflow has none
  double seconds = 0;   // that it took when the workflow was recorded
  double cpus = 0;      // 0: not given
  // Indices in Workflow: parents in `tasks`, all before this one; the others in `files`.
  std::vector<uint32_t> parents;  // ascending
  std::vector<uint32_t> inputs, outputs;
};

struct Workflow {
  std::string name;
  std::vector<WorkflowTask> tasks;  // parents first
  std::vector<WorkflowFile> files;
};

constexpr size_t kWorkflowBytesMax = size_t{512} << 20;
constexpr size_t kWorkflowTasksMax = 200'000;

/// An error names the task and the field that are wrong.
Result<Workflow> read_wfformat(std::string_view text);

}  // namespace flow
