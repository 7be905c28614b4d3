// The head of an HTTP request and the framing of its body, parsed strictly before the HTTP library
// reads anything. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace flow {

constexpr size_t kHeadBytesMax = 16 * 1024;
constexpr size_t kTargetBytesMax = 4 * 1024;

/// Why a request is rejected; the connection is closed after it.
struct HttpError {
  int status = 0;
  std::string message;
  std::string allow = {};  // for status 405
};

struct RequestHead {
  std::string method, target;
  uint64_t length = 0;  // of the body, unless it is chunked
  bool chunked = false;
  bool expects_continue = false;
  bool close = false;  // close the connection after the response
  std::string accept_encoding;
};

/// The methods of a path, as in `Allow`; empty for an unknown path.
using Methods = std::string_view (*)(std::string_view path);

/// `text` is everything up to and including the empty line.
std::variant<RequestHead, HttpError> read_head(std::string_view text, uint64_t body_max,
                                               Methods methods);

/// End of the head in `text` (after the empty line); 0 if the head is incomplete.
size_t end_of_head(std::string_view text);

/// Decodes the framing of a chunked body.
class ChunkedDecoder {
 public:
  enum class State { more, whole, broken, too_large };

  explicit ChunkedDecoder(uint64_t body_max) : body_max_(body_max) {}
  /// Moves available data from `in` to `body`. What follows the body stays in `in`.
  State decode(std::string& in, std::string& body);

 private:
  enum class Part { size, data, data_end, trailer };
  State step(std::string_view in, size_t& at, std::string& body);

  uint64_t body_max_;
  uint64_t left_ = 0;
  size_t trailer_bytes_ = 0;
  Part part_ = Part::size;
};

}  // namespace flow
