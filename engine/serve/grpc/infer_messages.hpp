// Requests for inference and their answers as messages of gRPC.
#pragma once
#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "engine/serve/grpc/inference.pb.h"
#include "engine/serve/inference.hpp"
#include "flow/result.hpp"

namespace flow {

/// Reads the message; the Error of kind user says that the bytes are none.
Result<inference::ModelInferRequest> read_request(grpc::ByteBuffer& bytes);

/// Takes the raw contents out of the message. Each malformed message is an Error of kind user that
/// names the fault and its place. The tensors have no digest.
Result<InferRequest> take_infer_request(inference::ModelInferRequest& message);

/// The message of a ModelInferResponse. Its tensors share the memory of `outputs`. The errors are
/// those of requested_outputs(), and of kind task if the response is larger than gRPC permits.
Result<grpc::ByteBuffer> infer_response(const std::string& model, const InferRequest& request,
                                        const Tensors& outputs);

/// The same as the message of a ModelStreamInferResponse.
Result<grpc::ByteBuffer> stream_response(const std::string& model, const InferRequest& request,
                                         const Tensors& outputs);

/// An error as the message of a ModelStreamInferResponse.
grpc::ByteBuffer stream_error(const std::string& model, const std::string& id,
                              const std::string& message);

}  // namespace flow
