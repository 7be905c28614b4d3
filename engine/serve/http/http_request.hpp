// Reads HTTP/1.1 requests from the bytes of a connection, one after another. It is strict, because
// a proxy in front of it may read the same bytes in another way (request smuggling). Pure: it knows
// neither sockets nor clocks.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/http/request_record.hpp"

namespace flow {

class HttpUpload;
struct HttpRequest;

constexpr size_t kHeadBytesMax = 16 * 1024;
constexpr size_t kHeadFieldsMax = 256;  // a kept field takes many times the bytes of a short one
constexpr size_t kTargetBytesMax = 4 * 1024;
constexpr std::string_view kAnyMethod = "*";
/// The capacity of a body whose length was announced exceeds its size by this, for parsers that
/// read beyond the end.
constexpr size_t kBodyPadding = 64;

/// Why a request is rejected. Its connection is closed after the response.
struct HttpError {
  int status = 0;
  std::string message;
  std::string allow = {};  // for status 405
  bool is_busy = false;    // the client may try again: `Retry-After`
};

/// The methods of a path, as in `Allow`; empty for an unknown path. kAnyMethod is for a path whose
/// requests another server understands: with any method and, or without, a body of any coding.
using Methods = std::string_view (*)(std::string_view path);

struct HttpRules {
  uint64_t body_max = 64u << 20;  // bytes
  Methods methods = nullptr;
  /// Names that `Host` and `Origin` may have besides addresses, `localhost` and names without a
  /// dot. In lower case.
  std::vector<std::string> hosts = {};
  /// The server has TLS: then an `Origin` must be `https`. Otherwise it may also be `http`: a proxy
  /// in front of the server may have TLS.
  bool is_encrypted = false;
  /// Whether a request to the path with this Authorization is permitted; else it gets 401 before
  /// its body is read. Without a function all are.
  std::function<bool(std::string_view path, std::string_view authorization)> authorize = {};
  /// Why the request will be refused once its body is there, as far as its head shows. It is asked
  /// before `100 Continue`. Without a function, and without an error, the body is taken.
  std::function<std::optional<HttpError>(const HttpRequest& head)> refusal = {};
  /// Whether requests keep what a proxy needs to send them on.
  bool keeps_fields = false;
  /// Chunked bodies, and those that are longer, are handed on while they arrive. body_max is not
  /// for them. Nothing: all bodies are read whole. At most body_max.
  std::optional<uint64_t> streamed_above = {};
};

struct HttpField {
  std::string name, value;
  bool operator==(const HttpField&) const = default;
};

/// A whole request. Header fields that the server does not use are dropped, unless
/// HttpRules::keeps_fields.
struct HttpRequest {
  std::string method, path, query;  // `query` is without `?`
  std::string body;
  bool close = false;   // the connection is closed after the response
  bool is_old = false;  // HTTP/1.0
  std::string accept_encoding;
  std::string content_encoding;  // `gzip`, `deflate` or empty
  std::string timeout;           // X-Request-Timeout
  /// Inference-Header-Content-Length: the JSON at the begin of the body, in bytes. Of a body
  /// without a coding it is at most the length.
  std::optional<uint64_t> json_bytes;
  std::string traceparent;  // if there is one, and it is valid
  /// Of the log of requests; null if the request is not recorded. Set by the connection.
  std::shared_ptr<RequestRecord> record;
  // With HttpRules::keeps_fields only:
  std::string target;             // as it arrived: path and query
  std::vector<HttpField> fields;  // all, in their order
  std::string client_address;     // set by the connection
  bool is_encrypted = false;      // set by the connection
  /// With HttpRules::streamed_above: the body while it arrives, instead of `body`; null if `body`
  /// has it. Set by the connection.
  std::shared_ptr<HttpUpload> upload;

  bool operator==(const HttpRequest&) const = default;
};

class HttpRequestReader {
 public:
  enum class State { head, body, whole, failed };

  /// `rules` must outlive the reader.
  explicit HttpRequestReader(const HttpRules& rules);
  ~HttpRequestReader();
  HttpRequestReader(HttpRequestReader&&) noexcept;
  HttpRequestReader& operator=(HttpRequestReader&&) noexcept;

  /// Reads `bytes` up to the end of the request, or up to the end of its head if its body
  /// is_streamed(), and returns how many it took. The caller gives the rest again, of another
  /// request after take(). Takes nothing in the states whole and failed.
  size_t read(std::string_view bytes);
  /// The client sends no more bytes: a request that has begun and is incomplete fails.
  void end();

  State state() const;
  /// Whether a byte of the request has arrived. Empty lines before a request do not count; there
  /// may be a few.
  bool has_begun() const;
  /// Whether the client waits for `100 Continue` before it sends the body. For state body.
  bool expects_continue() const;
  /// The body as announced; if it is chunked, as far as it has arrived. In bytes, for state body.
  uint64_t body_bytes() const;
  /// How much of the body has arrived, in bytes, for state body.
  uint64_t body_arrived() const;
  /// The memory that the body takes so far or soon, in bytes, for state body.
  uint64_t body_capacity() const;
  /// Whether the body is handed on while it arrives, for state body. read() returns at its begin.
  bool is_streamed() const;
  /// Of such a body before its first byte: the request without it. Once.
  HttpRequest take_head();
  /// What has arrived of such a body since the last call, without framing, for the states body and
  /// whole.
  std::string take_body();
  /// Content-Length, for state body; nothing if the body is chunked.
  std::optional<uint64_t> body_length() const;
  /// For state failed.
  const HttpError& error() const;
  /// Whether the method is HEAD: an error has no body then.
  bool is_head() const;
  /// What is known of the request in the states body and failed: its method and path, which may
  /// both be "", and its trace.
  HttpRequest known() const;
  /// The request as far as it has arrived, for state body.
  const HttpRequest& head() const;
  /// For state whole. The next request may be read then.
  HttpRequest take();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flow
