// Arguments and result of a task as text, for display.
#pragma once
#include <cstddef>
#include <string>

#include "engine/runs/input_resolver.hpp"
#include "flow/result.hpp"

namespace flow {

struct TaskValues {
  // JSON with line breaks, cut beyond a number of bytes; "" if it is not known yet or any more.
  std::string arguments, result;
};

TaskValues task_values_of(InputResolver& resolver, const core::Run& run, core::UnitId unit,
                          size_t bytes_max);
/// Opens the state for reading. `run` and `task` as of Reader::why(). Error (user) if one is
/// unknown.
Result<TaskValues> task_values(const std::string& state_dir, const std::string& run,
                               const std::string& task, size_t bytes_max);

}  // namespace flow
