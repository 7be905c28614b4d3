// URLs of inputs and outputs: http, https and s3. User information and queries may hold secrets:
// print display_url() only.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// An http or https URL, valid to send: `path` and `query` are percent-encoded.
struct Url {
  std::string scheme;     // "http" or "https"
  std::string user_info;  // "name:password" as written; "" if there is none
  std::string host;       // lower case; an IPv6 address has its brackets
  uint16_t port = 0;      // 0: the default of the scheme
  std::string path = "/";
  std::string query;  // without `?`
  bool operator==(const Url&) const = default;
};

/// Whether `text` begins with http://, https:// or s3:// (any case).
bool is_remote_url(std::string_view text);
bool is_s3_url(std::string_view text);

/// Spaces and characters outside ASCII are percent-encoded; a fragment is removed. The error does
/// not repeat user information or the query.
Result<Url> parse_url(std::string_view text);
/// The URL without user information, as it is requested.
std::string request_text(const Url& url);
/// Value of the header `Host`: the port only if it is not the scheme's default.
std::string host_header(const Url& url);
/// Whether scheme, host and port are equal.
bool is_same_origin(const Url& one, const Url& other);
/// The target of a redirect from `from`: absolute or relative.
Result<Url> resolve_url(const Url& from, std::string_view location);

/// The URL without user information, and `…` instead of its query. For any text.
std::string display_url(std::string_view text);
/// User information and query: what display_url() leaves out. "" if the URL has neither.
std::string url_secrets(std::string_view text);
/// Last part of the path, decoded, as a file name. "download" if there is none.
std::string file_name_of(std::string_view text);

/// An object, or with a pattern as key several objects. Keys are written literally in the URL.
struct S3Location {
  std::string bucket, key;
  bool operator==(const S3Location&) const = default;
};
Result<S3Location> parse_s3_url(std::string_view text);
std::string to_text(const S3Location& location);

/// RFC 3986: letters, digits, `-`, `.`, `_` and `~` stay, with `keep_slash` also `/`.
std::string percent_encode(std::string_view text, bool keep_slash);
/// Invalid escapes stay as they are.
std::string percent_decode(std::string_view text);

}  // namespace flow
