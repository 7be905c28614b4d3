// Classifies system errors: a full disk or a file that another process removed may be transient; a
// name that is too long or a missing permission is permanent.
#pragma once
#include <string>

#include "flow/result.hpp"

namespace flow {

bool is_transient(int code);
/// "cannot WHAT `PATH`: …" for errno `code`; of kind `environment` if it may be transient, else of
/// kind `user`.
Error system_error(const char* what, const std::string& path, int code);

}  // namespace flow
