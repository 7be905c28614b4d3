// What the functions of a script's tags and resource options see of a value.
#pragma once
#include "flow/value.hpp"

namespace flow {

/// The value with `{ name, size }` (bytes) for each file and folder, and `{ dtype, shape }` for
/// each tensor. Neither has content where these functions run. Refs stay as they are.
Value outline_of(const Value& value);

}  // namespace flow
