// Errors of JSON text.
#pragma once
#include <string_view>

#include "flow/result.hpp"

namespace flow {

/// "the body is not JSON: …", with line and column. `at` is where the fault was found, or null. The
/// other parser of this project explains the fault if the text is short.
Error json_fault(std::string_view json, const char* at, std::string_view reason);

}  // namespace flow
