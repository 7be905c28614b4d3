// Answers inference requests that arrived by HTTP.
#pragma once
#include <memory>
#include <string>

#include "engine/serve/http/http_server.hpp"
#include "engine/serve/infer_responder.hpp"

namespace flow {

/// `accept_encoding` is the field of the request.
std::unique_ptr<InferResponder> http_responder(HttpReply reply, const std::string& accept_encoding);

}  // namespace flow
