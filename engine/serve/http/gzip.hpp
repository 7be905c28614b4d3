// Content-Encoding gzip and deflate of bodies.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "engine/serve/http/http_request.hpp"

namespace flow {

/// Whether the value of an Accept-Encoding field permits gzip.
bool accepts_gzip(std::string_view accept_encoding);
std::string gzip(std::string_view body);

/// Either the bytes or why the request is rejected.
struct PlainBody {
  std::string bytes = {};
  std::optional<HttpError> error = {};
};

/// Decodes `encoding`: gzip or deflate (in zlib's format, RFC 9110). Status 413 if the body gives
/// more than `bytes_max`, 400 if it is damaged or other bytes follow.
PlainBody decompress(std::string_view encoding, std::string_view body, size_t bytes_max);

}  // namespace flow
