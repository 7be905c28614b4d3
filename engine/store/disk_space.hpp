// Error messages for a state that cannot be written.
#pragma once
#include <string>

#include "engine/store/store.hpp"

namespace flow {

/// "12 MiB free"
std::string free_space(const std::string& dir);
/// `what` names the path and the system's error; this adds the free space, the last committed
/// record and the remedy.
Error cannot_write(const Store& store, const std::string& dir, const std::string& what);

}  // namespace flow
