// The head of an HTTP request and the framing of its body, read strictly before the library sees
// any of it. Pure: bytes in, a verdict out.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace flow {

constexpr size_t kHeadBytesMax = 16 * 1024;
constexpr size_t kTargetBytesMax = 4 * 1024;

/// Why a request is not served; the connection ends with it.
struct HttpError {
  int status = 0;
  std::string message;
  std::string allow = {};  // of a 405
};

struct RequestHead {
  std::string method, target;
  uint64_t length = 0;  // of the body, unless it is chunked
  bool chunked = false;
  bool expects_continue = false;
  bool close = false;  // after the answer
  std::string accept_encoding;
};

/// The methods that a path answers, as in `Allow`; empty for a path that is unknown.
using Methods = std::string_view (*)(std::string_view path);

/// `text` is all up to the empty line and with it.
std::variant<RequestHead, HttpError> read_head(std::string_view text, uint64_t body_max,
                                               Methods methods);

/// Where the head ends in `text` (behind the empty line); 0 where it has not ended.
size_t end_of_head(std::string_view text);

/// Takes the frames of a chunked body off.
class ChunkedDecoder {
 public:
  enum class State { more, whole, broken, too_large };

  explicit ChunkedDecoder(uint64_t body_max) : body_max_(body_max) {}
  /// Moves what is there from `in` to `body`; what follows the body stays in `in`.
  State take(std::string& in, std::string& body);

 private:
  enum class Part { size, data, data_end, trailer };
  State step(std::string_view in, size_t& at, std::string& body);

  uint64_t body_max_;
  uint64_t left_ = 0;
  size_t trailer_bytes_ = 0;
  Part part_ = Part::size;
};

}  // namespace flow
