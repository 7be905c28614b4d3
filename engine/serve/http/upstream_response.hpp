// Reads the response of another HTTP/1.1 server to one request from the bytes of a connection. It
// is strict: what it lets pass has one reading only. Pure: it knows neither sockets nor clocks.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/http/http_request.hpp"

namespace flow {

constexpr size_t kUpstreamHeadMax = 64 * 1024;  // bytes, with interim responses before it

struct UpstreamHead {
  int status = 0;
  std::vector<HttpField> fields;   // all, in their order
  std::optional<uint64_t> length;  // Content-Length
};

class UpstreamResponseReader {
 public:
  enum class State { head, body, whole, failed };

  /// A response to HEAD has no body.
  explicit UpstreamResponseReader(bool is_head);
  ~UpstreamResponseReader();
  UpstreamResponseReader(UpstreamResponseReader&&) noexcept;
  UpstreamResponseReader& operator=(UpstreamResponseReader&&) noexcept;

  /// Reads `bytes` up to the end of the response, and returns how many it took: all but in the
  /// states whole and failed. Appends what they have of the body to `body`, without framing.
  /// Interim responses (1xx) and trailers are dropped.
  size_t read(std::string_view bytes, std::string& body);
  /// The server has closed the connection: this ends the body if nothing else does.
  void end();

  State state() const;
  /// Whether a byte has arrived.
  bool has_begun() const;
  /// For the states body and whole.
  const UpstreamHead& head() const;
  /// For state whole: the connection may be used for another request.
  bool keeps_connection() const;
  /// For state failed, such as "its head is larger than 65536 bytes".
  const std::string& error() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flow
