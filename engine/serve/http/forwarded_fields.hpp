// The heads of messages that a proxy sends on: end-to-end fields stay as they are, and those that
// are only for one connection are removed (RFC 9110, section 7.6.1).
#pragma once
#include <string>
#include <vector>

#include "engine/serve/http/http_request.hpp"

namespace flow {

/// The fields of a response, each with CR LF at its end, without those of its framing.
std::string forwarded_fields(const std::vector<HttpField>& fields);

/// Whether the client wants to speak WebSocket on the connection from now on.
bool asks_for_websocket(const std::vector<HttpField>& fields);

/// The head of a request that was read with HttpRules::keeps_fields. Its body is framed by its
/// length, or in chunks if that is not known. The client's address is added to X-Forwarded-For;
/// X-Forwarded-Proto is `http` or `https`.
std::string forwarded_head(const HttpRequest& request);

}  // namespace flow
