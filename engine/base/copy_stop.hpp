// Whether copies of results out of the state go on; stop_copies() of flow/process.hpp ends them.
#pragma once
#include <string>

#include "flow/result.hpp"

namespace flow {

/// Asked before each piece that goes to `target`. Error (interrupted) once copies are stopped.
Status check_copies_running(const std::string& target);

}  // namespace flow
