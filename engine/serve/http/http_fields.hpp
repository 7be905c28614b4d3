// The header fields of a request: which ones it must and may have, and how long its body is.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/serve/http/http_request.hpp"

namespace flow {

/// Keeps views of the fields, which must be valid until check().
class HttpFields {
 public:
  HttpFields(const HttpRules& rules, HttpRequest& request) : rules_(rules), request_(request) {}

  /// Another server understands the request: its coding and the framing of tensors are not
  /// checked, and any method may have a body.
  void allow_any(bool allows) { allows_any_ = allows; }
  std::optional<HttpError> read(std::string_view name, std::string_view value);
  /// After the last field: fills the request. `is_old` is for HTTP/1.0.
  std::optional<HttpError> check(bool is_old);
  /// Why a field that another parser rejects is wrong, if it is a length or coding of the body.
  std::optional<HttpError> explain(std::string_view name, std::string_view value);

  /// Content-Length
  std::optional<uint64_t> length() const { return length_; }
  bool is_chunked() const { return codings_ > 0; }
  bool expects_continue() const { return expects_continue_; }

 private:
  using Field = std::optional<std::string_view>;

  std::optional<HttpError> read_list(std::string_view name, std::string_view value);
  std::optional<HttpError> read_single(std::string_view name, std::string_view value);
  std::optional<HttpError> check_host(bool is_old) const;
  bool is_of_other_site() const;
  std::optional<HttpError> check_framing(bool is_old) const;

  const HttpRules& rules_;
  HttpRequest& request_;
  std::optional<uint64_t> length_;
  Field host_, origin_, coding_, expectation_, authorization_, content_type_, timeout_, json_bytes_;
  Field traceparent_, fetch_site_, fetch_mode_;
  int codings_ = 0, traceparents_ = 0;
  size_t connection_elements_ = 0;  // of a request that is forwarded
  bool expects_continue_ = false, allows_any_ = false;
};

/// The JSON at the begin of the body must be a part of it. A compressed body can be checked only
/// after it is decompressed.
std::optional<HttpError> check_json_bytes(const HttpRequest& request, uint64_t body_bytes);
HttpError body_too_large(const HttpRules& rules);

/// The begin of `text`, for an error.
std::string_view quotable(std::string_view text);

}  // namespace flow
