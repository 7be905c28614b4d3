// Content-Encoding gzip and deflate of bodies.
#pragma once
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

/// Whether the value of an Accept-Encoding field permits gzip.
bool accepts_gzip(std::string_view accept_encoding);
std::string gzip(std::string_view body);
/// Decodes `encoding`: gzip or deflate (in zlib's format, RFC 9110). Error of kind user if the
/// bytes are damaged, are followed by others, or give more than `bytes_max`.
Result<std::string> decompress(std::string_view encoding, std::string_view body, size_t bytes_max);

}  // namespace flow
