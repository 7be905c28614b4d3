// The inputs and outputs that a service declares: as its metadata shows them, and as it checks
// them.
#pragma once
#include <string>
#include <vector>

#include "engine/serve/inference.hpp"
#include "engine/value/tensor_spec.hpp"
#include "flow/result.hpp"

namespace flow {

/// A list for metadata: [{"name":"x","datatype":"FP32","shape":[-1,64]}].
std::string tensors_json(const std::vector<TensorSpec>& declared);

/// Whether the first dimension of each is of any size: requests can be joined along it.
bool have_rows(const std::vector<TensorSpec>& declared);

/// Whether the inputs of a request are those declared, in name, datatype and shape; without a
/// declaration all are. The Error is of kind user. The datatype is the one that the client gave: an
/// INT16 must not be given as INT32, although a tensor holds both in the same way.
Status check_inputs(const std::vector<TensorSpec>& declared, const InferRequest& request);

/// The same for what predict returned; the Error is of kind task. Each output gets the datatype
/// that is declared, which may be one that tensors hold in a wider type.
Status check_outputs(const std::vector<TensorSpec>& declared, Tensors& outputs);

}  // namespace flow
