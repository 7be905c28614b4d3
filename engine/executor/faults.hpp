// Which of the system's errors may pass by themselves: a full disk and a file that another removed
// do, a name that is too long or may not be read never does.
#pragma once
#include <string>

#include "flow/result.hpp"

namespace flow {

bool is_transient(int code);
/// "cannot WHAT `PATH`: …" of the error number `code`: of kind environment where it may pass, else
/// of kind user.
Error system_error(const char* what, const std::string& path, int code);

}  // namespace flow
