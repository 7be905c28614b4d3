// What a script's `predict` returned, as tensors.
#pragma once
#include <string>

#include "engine/serve/inference.hpp"
#include "flow/result.hpp"
#include "flow/value.hpp"

namespace flow {

/// The tensors of `{ y = tensor }`. Another result is an Error of kind task that says what it is;
/// `service` is the name in it.
Result<Tensors> tensors_by_name(const Value& result, const std::string& service);

}  // namespace flow
