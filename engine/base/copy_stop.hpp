// The flag by which stop_copies() of flow/process.hpp interrupts copies of results.
#pragma once
#include <string>

#include "flow/result.hpp"

namespace flow {

/// Call this before copying each chunk to `target`. Error (interrupted) once copies are stopped.
Status check_copies_running(const std::string& target);

}  // namespace flow
