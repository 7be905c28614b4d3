// Joins several errors into one.
#pragma once
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// One error with the kind of the first and one paragraph per error. Paragraphs after the first
/// start with `error:`, which the caller prints before the first. `errors` must not be empty.
Error joined_errors(const std::vector<Error>& errors);

}  // namespace flow
