// What is said when the state can't be written.
#pragma once
#include <string>

#include "engine/store/store.hpp"

namespace flow {

/// "12 MiB free"
std::string free_space(const std::string& dir);
/// `what` holds the path and the system's words; free space, the last committed record and what to
/// do are added.
Error cannot_write(const Store& store, const std::string& dir, const std::string& what);

}  // namespace flow
