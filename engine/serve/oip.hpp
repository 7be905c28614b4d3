// The Open Inference Protocol v2 over HTTP: JSON, and the binary tensor extension.
// https://github.com/kserve/open-inference-protocol
// https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/serve/http/http_request.hpp"
#include "engine/serve/inference.hpp"
#include "flow/result.hpp"

namespace flow {

/// Decodes the body of a request. One whose capacity exceeds its size by kBodyPadding is parsed in
/// place, another one is copied first. If `json_bytes` is given, the body begins with that many
/// bytes of JSON, and the data of its binary tensors follows; tensors may share the body's memory.
/// Each malformed body is an Error of kind user that names the fault and its place. The tensors
/// have no digest.
Result<InferRequest> parse_infer_request(std::string body, std::optional<uint64_t> json_bytes);

struct InferResponse {
  std::string body;
  size_t json_bytes = 0;          // of the body, before the binary tensors; 0: it has none
  std::vector<Bytes> parts = {};  // binary tensors after the body, in the memory of the outputs
};

/// The outputs that the request asks for, in its order. One that does not exist is an Error of kind
/// user.
Result<std::vector<const Tensors::value_type*>> requested_outputs(const InferRequest& request,
                                                                  const Tensors& outputs);

/// Encodes the outputs that the request asks for, with the errors of requested_outputs(). NaN or an
/// infinity in JSON is an Error of kind task that names the output.
Result<InferResponse> print_infer_response(const std::string& model, const InferRequest& request,
                                           const Tensors& outputs);

}  // namespace flow
