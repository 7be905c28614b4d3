// Several errors told as one.
#pragma once
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// All of them, of the first one's kind: a paragraph each, and each after the first begins with
/// `error:`, as whoever prints the whole begins the first. There must be one.
Error joined_errors(const std::vector<Error>& errors);

}  // namespace flow
