// What a script's `predict` gets and returns: tensors, and lists of strings for those of BYTES.
#pragma once
#include <cstddef>
#include <string>

#include "engine/serve/inference.hpp"
#include "flow/result.hpp"
#include "flow/value.hpp"

namespace flow {

/// The table of a request's tensors.
Value predict_inputs(const Tensors& inputs);

/// The tensors of `{ y = tensor }`, or of BYTES `{ y = { "a", "b", shape = { 2, 1 } } }`. Another
/// result is an Error of kind task that says what it is; `service` is the name in it.
Result<Tensors> tensors_by_name(const Value& result, const std::string& service);

/// The parameters of the responses of a call for so many requests, of the second result of
/// `predict`: nil, or a table with `parameters`, those of every response, and `requests`, a list
/// whose entries have the `parameters` of one response each, which go first. The Error of kind task
/// says what else it is.
Result<ResponseParameters> response_parameters(const Value& response, size_t requests,
                                               const std::string& service);

}  // namespace flow
