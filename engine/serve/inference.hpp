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

/// A parameter of a request, of one of its inputs, or of an output that it asks for; or of a
/// response.
struct Parameter {
  enum class Place : uint8_t { request, input, output };

  Place place = Place::request;
  std::string tensor = {};  // the name of the input or output
  std::string name;
  Value value;  // a boolean, an integer, a number or a string
};

/// The parameters of responses, by request; empty if none has any. Their place is `request`.
using ResponseParameters = std::vector<std::vector<Parameter>>;

/// A request of a batch, as `predict` gets to know it.
struct BatchedRequest {
  std::string id = {};
  int64_t rows = 0;              // of the batch: those of the first request come first
  std::string traceparent = {};  // valid, or ""
  std::vector<Parameter> parameters = {};
};

struct InferRequest {
  std::string id;
  Tensors inputs;                        // with the datatypes that the client gave them
  std::vector<RequestedOutput> outputs;  // empty: all outputs
  bool are_outputs_binary = false;       // if `outputs` is empty
  std::vector<Parameter> parameters;     // that the protocol itself does not use
  /// The memory of its outputs is that of no other request: its response may hold it until it is
  /// sent.
  bool are_outputs_own = false;
  std::vector<Parameter> response_parameters;  // of its response, once there are outputs
};

}  // namespace flow
