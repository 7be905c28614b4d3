// Rules for all calls: which callers are permitted, which model is meant, and which status an error
// gets.
#pragma once
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "engine/serve/grpc/grpc_connections.hpp"
#include "engine/serve/inference_backend.hpp"

namespace flow {

/// How a call was answered, with the status of HTTP.
struct CallStatus {
  int status = 200;
  std::string message = {};  // of an error
};

grpc::Status grpc_status(const CallStatus& status);

/// The error of a call of one request that ends without it.
CallStatus no_message();
/// The error of a call without a key that permits it. If it has one, its connection is trusted.
CallStatus check_key(const InferenceBackend& backend, GrpcConnections& connections,
                     const grpc::CallbackServerContext& context);
/// The error of a call for another model or version; OK if it is the one of the backend. An empty
/// version is any.
CallStatus check_model(const InferenceBackend& backend, const std::string& model,
                       const std::string& version);

/// The metadata `traceparent` if there is one and it is valid; else "".
std::string traceparent_of(const grpc::CallbackServerContext& context);

/// Of a call of this method that arrives now.
RequestRecord record_of(const grpc::CallbackServerContext& context, const char* method);

/// The client's deadline; nothing if it has none.
std::optional<InferenceBackend::Clock::time_point> deadline_of(
    const grpc::CallbackServerContext& context);

}  // namespace flow
