#include "engine/serve/http/http_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/serve/http/field_text.hpp"
#include "engine/serve/http/trace_context.hpp"

namespace flow {

namespace {

constexpr size_t kDigitsMax = 18;  // of a length: it fits in 64 bits
constexpr size_t kPortDigitsMax = 5;
constexpr size_t kQuotedMax = 200;  // bytes

constexpr std::string_view kContentLength = "Content-Length";
constexpr std::string_view kJsonBytes = "Inference-Header-Content-Length";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<uint64_t> read_length(std::string_view digits) {
  bool good = !digits.empty() && digits.size() <= kDigitsMax &&
              std::all_of(digits.begin(), digits.end(), is_digit);
  if (!good) return {};
  uint64_t length = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), length);
  return length;
}

/// name:port
struct Authority {
  std::string_view name, port;
};

std::optional<Authority> read_authority(std::string_view text) {
  size_t end = text.starts_with('[') ? text.find(']') : text.find(':');
  if (end == std::string_view::npos && text.starts_with('[')) return {};
  if (text.starts_with('[')) end++;
  Authority authority{text.substr(0, end), {}};
  if (authority.name.size() < text.size()) {
    if (text[end] != ':') return {};
    authority.port = text.substr(end + 1);
  }
  const std::string_view others = text.starts_with('[') ? "[]:.%" : ".-_";
  bool good = authority.port.size() <= kPortDigitsMax &&
              std::all_of(authority.port.begin(), authority.port.end(), is_digit) &&
              std::all_of(authority.name.begin(), authority.name.end(), [&](char c) {
                return is_digit(c) || (lower_letter(c) >= 'a' && lower_letter(c) <= 'z') ||
                       others.find(c) != std::string_view::npos;
              });
  if (!good) return {};
  if (authority.name.ends_with('.')) authority.name.remove_suffix(1);
  return authority;
}

/// DNS rebinding: a web page whose domain resolves to 127.0.0.1 makes its visitors' browsers send
/// that domain as Host. Addresses and names without a dot cannot be registered by an attacker.
bool is_near(std::string_view name) {
  const std::string_view local = ".localhost";
  if (name.starts_with('[') || name.find('.') == std::string_view::npos) return true;
  if (std::all_of(name.begin(), name.end(), [](char c) { return is_digit(c) || c == '.'; }))
    return true;
  return name.size() > local.size() && equal_names(name.substr(name.size() - local.size()), local);
}

bool is_listed(const HttpRules& rules, std::string_view name) {
  return std::any_of(rules.hosts.begin(), rules.hosts.end(),
                     [&](const std::string& host) { return equal_names(host, name); });
}

/// A browser sends the Origin of the page that asks. A page of another port is another site.
bool is_own_origin(std::string_view text, const Authority& host, const HttpRules& rules) {
  size_t end = text.find("://");
  if (end == std::string_view::npos) return false;  // also `null`
  bool is_https = equal_names(text.substr(0, end), "https");
  bool is_http = equal_names(text.substr(0, end), "http");
  if (!is_https && (!is_http || rules.is_encrypted)) return false;
  auto origin = read_authority(text.substr(end + 3));
  if (!origin || origin->name.empty()) return false;
  if (is_listed(rules, origin->name)) return true;
  std::string_view usual = is_https ? "443" : "80";
  auto port_of = [&](const Authority& authority) {
    return authority.port.empty() ? usual : authority.port;
  };
  return equal_names(origin->name, host.name) && port_of(*origin) == port_of(host);
}

bool lists(std::string_view list, std::string_view word) {
  while (!list.empty())
    if (equal_names(next_element(list), word)) return true;
  return false;
}

HttpError broken_length(std::string_view name, std::string_view value) {
  return {400, fmt::format("the {} `{}` is not a number of bytes", name, quotable(value))};
}

}  // namespace

std::string_view quotable(std::string_view text) { return text.substr(0, kQuotedMax); }

HttpError body_too_large(const HttpRules& rules) {
  return {413, fmt::format("the body is larger than {} bytes", rules.body_max)};
}

std::optional<HttpError> check_json_bytes(const HttpRequest& request, uint64_t body_bytes) {
  // If the body is compressed, it counts the bytes that come out.
  if (!request.content_encoding.empty() || request.json_bytes.value_or(0) <= body_bytes) return {};
  return HttpError{400, fmt::format("the {} is {} bytes, but the body has only {}", kJsonBytes,
                                    *request.json_bytes, body_bytes)};
}

std::optional<HttpError> HttpFields::read(std::string_view name, std::string_view value) {
  if (equal_names(name, kContentLength)) {
    auto length = read_length(value);
    if (!length) return broken_length(kContentLength, value);
    if (length_ && length_ != length)
      return HttpError{400, "there are two Content-Lengths that differ"};
    length_ = length;
    return {};
  }
  if (equal_names(name, "Transfer-Encoding")) {
    codings_++;
    coding_ = value;
    return {};
  }
  return read_list(name, value);
}

std::optional<HttpError> HttpFields::read_list(std::string_view name, std::string_view value) {
  if (equal_names(name, "Accept-Encoding")) {
    std::string& list = request_.accept_encoding;
    if (!list.empty() && !value.empty()) list += ", ";
    list += value;
    return {};
  }
  if (equal_names(name, "Expect")) {
    if (lists(value, "100-continue")) expects_continue_ = true;
    expectation_ = value;
    return {};
  }
  if (rules_.keeps_fields && equal_names(name, "Connection")) {
    connection_elements_ += count_elements(value);
    if (connection_elements_ <= kConnectionElementsMax) return {};
    return HttpError{400,
                     fmt::format("`Connection` has more than {} elements", kConnectionElementsMax)};
  }
  if (allows_any_ || !equal_names(name, "Content-Encoding")) return read_single(name, value);
  if (equal_names(value, "identity")) return {};
  bool is_gzip = equal_names(value, "gzip") || equal_names(value, "x-gzip");
  if ((!is_gzip && !equal_names(value, "deflate")) || !request_.content_encoding.empty())
    return HttpError{415, fmt::format("the Content-Encoding `{}` is not supported, only one of "
                                      "gzip, deflate and identity",
                                      quotable(value))};
  request_.content_encoding = is_gzip ? "gzip" : "deflate";
  return {};
}

std::optional<HttpError> HttpFields::read_single(std::string_view name, std::string_view value) {
  if (equal_names(name, "traceparent")) {
    traceparents_++;  // of several none is valid
    traceparent_ = value;
    return {};
  }
  // A second one could be what another program reads instead.
  const std::pair<std::string_view, Field*> fields[] = {
      {"Host", &host_},
      {"Origin", &origin_},
      {"Sec-Fetch-Site", &fetch_site_},
      {"Sec-Fetch-Mode", &fetch_mode_},
      {"Authorization", &authorization_},
      {"Content-Type", &content_type_},
      {"X-Request-Timeout", &timeout_},
      {kJsonBytes, &json_bytes_},
  };
  for (const auto& [known, field] : fields) {
    if (!equal_names(name, known)) continue;
    if (*field) return HttpError{400, fmt::format("there is more than one {}", known)};
    *field = value;
  }
  return {};
}

std::optional<HttpError> HttpFields::check(bool is_old) {
  if (traceparents_ == 1 && is_traceparent(*traceparent_)) request_.traceparent = *traceparent_;
  if (auto error = check_host(is_old)) return error;
  if (rules_.authorize && !rules_.authorize(request_.path, authorization_.value_or("")))
    return HttpError{401, "this service needs a key: send `Authorization: Bearer KEY`"};
  if (auto error = check_framing(is_old)) return error;
  if (json_bytes_ && !allows_any_) {
    request_.json_bytes = read_length(*json_bytes_);
    if (!request_.json_bytes) return broken_length(kJsonBytes, *json_bytes_);
    if (!is_chunked())
      if (auto error = check_json_bytes(request_, length_.value_or(0))) return error;
  }
  request_.timeout = timeout_.value_or("");
  if (is_old) expects_continue_ = false;
  return {};
}

std::optional<HttpError> HttpFields::explain(std::string_view name, std::string_view value) {
  if (auto error = read(name, value)) return error;
  return check_framing(false);
}

std::optional<HttpError> HttpFields::check_host(bool is_old) const {
  if (!host_ && !is_old) return HttpError{400, "an HTTP/1.1 request needs a Host"};
  auto host = read_authority(host_.value_or(""));
  if (!host)
    return HttpError{400, fmt::format("the Host `{}` is not `name:port`", quotable(*host_))};
  if (!is_near(host->name) && !is_listed(rules_, host->name))
    return HttpError{403, fmt::format("the Host `{}` is a domain: a service is asked as localhost, "
                                      "by its address, or by a name in its `hosts`",
                                      quotable(*host_))};
  if (is_of_other_site())
    return HttpError{403,
                     "a page of another web site asks for this: a service answers pages of its own "
                     "address, and of the names in its `hosts`"};
  if (!origin_ || is_own_origin(*origin_, *host, rules_)) return {};
  return HttpError{403,
                   fmt::format("the Origin `{}` is another web site: a service answers pages "
                               "of its own address, and of the names in its `hosts`{}",
                               quotable(*origin_), rules_.is_encrypted ? ", over https only" : "")};
}

/// A browser sends no Origin with what a page embeds, such as an image. Links of other sites are
/// followed: they show the answer to the user. With `hosts` the site may be one of them.
bool HttpFields::is_of_other_site() const {
  if (origin_ || !rules_.hosts.empty() || !equal_names(fetch_site_.value_or(""), "cross-site"))
    return false;
  return request_.method != "GET" || !equal_names(fetch_mode_.value_or(""), "navigate");
}

std::optional<HttpError> HttpFields::check_framing(bool is_old) const {
  if (codings_ > 0) {
    if (length_) return HttpError{400, "Content-Length and Transfer-Encoding exclude each other"};
    if (is_old) return HttpError{400, "HTTP/1.0 does not have Transfer-Encoding"};
    if (codings_ > 1) return HttpError{501, "only one Transfer-Encoding is supported: chunked"};
    if (!equal_names(*coding_, "chunked"))
      return HttpError{501, fmt::format("the Transfer-Encoding `{}` is not supported, only chunked",
                                        quotable(*coding_))};
  }
  bool takes_body = request_.method == "POST";
  if (!takes_body && !allows_any_ && (length_.value_or(0) > 0 || is_chunked()))
    return HttpError{400, fmt::format("{} takes no body", request_.method)};
  if (!rules_.streamed_above && length_.value_or(0) > rules_.body_max)
    return body_too_large(rules_);
  if (expectation_ && !expects_continue_)
    return HttpError{417,
                     fmt::format("the expectation `{}` is not supported", quotable(*expectation_))};
  return {};
}

}  // namespace flow
