// A request for inference and its tensors, apart from any encoding.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "flow/value.hpp"

namespace flow {

struct Datatype;

/// A tensor of a request or reply. It has no digest: nothing is stored under it, and it would take
/// longer than the request. Of the datatype BYTES, `data` has the elements as
/// engine/value/byte_elements.hpp says, and `dtype` means nothing.
struct InferTensor : Tensor {
  InferTensor() = default;
  InferTensor(Tensor tensor) : Tensor(std::move(tensor)) {}

  const Datatype* datatype = nullptr;  // null: that of the dtype
};

/// The tensors of one request or reply, by name.
using Tensors = std::map<std::string, InferTensor>;

struct RequestedOutput {
  std::string name;
  bool is_binary = false;
};

/// A request of a batch, as `predict` gets to know it.
struct BatchedRequest {
  std::string id = {};
  int64_t rows = 0;              // of the batch: those of the first request come first
  std::string traceparent = {};  // valid, or ""
};

struct InferRequest {
  std::string id;
  Tensors inputs;                        // with the datatypes that the client gave them
  std::vector<RequestedOutput> outputs;  // empty: all outputs
  bool are_outputs_binary = false;       // if `outputs` is empty
  /// The memory of its outputs is that of no other request: its response may hold it until it is
  /// sent.
  bool are_outputs_own = false;
};

}  // namespace flow
