// A request for inference and its tensors, apart from any encoding.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "flow/value.hpp"

namespace flow {

/// The tensors of one request or reply, by name. Those of a request have no digest: nothing is
/// stored under it, and it would take longer than the request.
using Tensors = std::map<std::string, Tensor>;

struct Datatype;

struct RequestedOutput {
  std::string name;
  bool is_binary = false;
};

struct InferRequest {
  std::string id;
  Tensors inputs;
  std::map<std::string, const Datatype*> datatypes;  // that the client gave each input
  std::vector<RequestedOutput> outputs;              // empty: all outputs
  bool are_outputs_binary = false;                   // if `outputs` is empty
};

}  // namespace flow
