// A response, and its head as HTTP/1.1 writes it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flow/bytes.hpp"

namespace flow {

struct HttpResponse {
  int status = 200;
  std::string body;  // its begin, if there are `parts`
  std::string content_type = "application/json";
  std::string fields = {};        // further header lines, each with CR LF at its end
  std::vector<Bytes> parts = {};  // the rest of the body, sent from its own memory

  uint64_t body_bytes() const;
};

/// The head of a response whose body follows in parts.
struct HttpStreamHead {
  int status = 200;
  std::string content_type = {};  // "": `fields` has it, if there is one
  std::string fields = {};        // as in HttpResponse
  /// Of the body, if it is known. Of a response to HEAD and of status 304, that of the body which
  /// they do not have.
  std::optional<uint64_t> length = {};
};

/// {"error": message}
HttpResponse error_response(int status, std::string_view message);

/// The same for a client that should try again after a second.
HttpResponse busy_response(int status, std::string_view message);

/// The head with its empty line. `closes`: the connection ends after the response.
std::string response_head(const HttpResponse& response, bool closes);

/// The same of a stream. `is_chunked`: the body is framed as chunks.
std::string stream_head(const HttpStreamHead& head, bool is_chunked, bool closes);

}  // namespace flow
