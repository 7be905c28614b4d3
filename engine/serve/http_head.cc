#include "engine/serve/http_head.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace flow {

namespace {

constexpr size_t kDigitsMax = 18;  // maximum digits of a Content-Length: fits in 64 bits
constexpr size_t kChunkLineMax = 256;
constexpr size_t kTrailerBytesMax = 4 * 1024;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_token(std::string_view text) {
  auto good = [](char c) {
    return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), good);
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c == '\t' || (c >= 32 && c != 127); });
}

std::string_view trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

struct Header {
  std::string name;  // lower case
  std::string_view value;
};

std::vector<std::string_view> values_of(const std::vector<Header>& headers, std::string_view name) {
  std::vector<std::string_view> values;
  for (const Header& header : headers)
    if (header.name == name) values.push_back(header.value);
  return values;
}

bool has_word(const std::vector<std::string_view>& values, std::string_view word) {
  for (std::string_view value : values) {
    for (size_t at = 0; at <= value.size();) {
      size_t end = std::min(value.find(',', at), value.size());
      if (lowered(trimmed(value.substr(at, end - at))) == word) return true;
      at = end + 1;
    }
  }
  return false;
}

/// DNS rebinding: a web page whose domain resolves to 127.0.0.1 makes its visitors' browsers send
/// that domain as Host. Addresses and names without a dot cannot be registered by an attacker.
bool is_near(std::string_view host) {
  if (host.starts_with('[')) return true;
  std::string name = lowered(host.substr(0, host.find(':')));
  if (!name.empty() && name.back() == '.') name.pop_back();
  bool address =
      std::all_of(name.begin(), name.end(), [](char c) { return is_digit(c) || c == '.'; });
  return address || name.find('.') == std::string::npos || name.ends_with(".localhost");
}

std::optional<HttpError> check_host(const std::vector<Header>& headers, bool old) {
  auto hosts = values_of(headers, "host");
  if (hosts.empty() && old) return {};
  if (hosts.empty()) return HttpError{400, "an HTTP/1.1 request needs a Host"};
  if (hosts.size() > 1) return HttpError{400, "there is more than one Host"};
  if (is_near(hosts[0])) return {};
  return HttpError{403,
                   fmt::format("the Host `{}` is a domain: a service is asked as localhost or by "
                               "its address",
                               hosts[0])};
}

std::optional<HttpError> read_framing(const std::vector<Header>& headers, bool old,
                                      uint64_t body_max, RequestHead& head) {
  auto lengths = values_of(headers, "content-length");
  auto codings = values_of(headers, "transfer-encoding");
  if (!codings.empty()) {
    if (!lengths.empty())
      return HttpError{400, "Content-Length and Transfer-Encoding exclude each other"};
    if (old) return HttpError{400, "HTTP/1.0 does not have Transfer-Encoding"};
    if (codings.size() > 1 || lowered(codings[0]) != "chunked")
      return HttpError{501, fmt::format("the Transfer-Encoding `{}` is not supported, only chunked",
                                        codings[0])};
    head.chunked = true;
  }
  for (std::string_view length : lengths) {
    if (length != lengths[0]) return HttpError{400, "there are two Content-Lengths that differ"};
    bool digits = !length.empty() && std::all_of(length.begin(), length.end(), is_digit);
    if (!digits || length.size() > kDigitsMax)
      return HttpError{400,
                       fmt::format("the Content-Length `{}` is not a number of bytes", length)};
    std::from_chars(length.data(), length.data() + length.size(), head.length);
  }
  bool takes_body = head.method == "POST";
  if (takes_body && lengths.empty() && !head.chunked)
    return HttpError{411, "a body needs a Content-Length, or Transfer-Encoding: chunked"};
  if (!takes_body && (head.length > 0 || head.chunked))
    return HttpError{400, fmt::format("{} takes no body", head.method)};
  if (head.length > body_max)
    return HttpError{413, fmt::format("the body is larger than {} bytes", body_max)};
  for (std::string_view coding : values_of(headers, "content-encoding"))
    if (lowered(coding) != "identity")
      return HttpError{415, fmt::format("the Content-Encoding `{}` is not supported", coding)};
  auto expected = values_of(headers, "expect");
  head.expects_continue = has_word(expected, "100-continue") && !old;
  if (!expected.empty() && !has_word(expected, "100-continue"))
    return HttpError{417, fmt::format("the expectation `{}` is not supported", expected[0])};
  return {};
}

std::optional<HttpError> read_request_line(std::string_view line, Methods methods,
                                           RequestHead& head, bool& old) {
  const HttpError broken{400, "the request line is not `METHOD /path HTTP/1.1`"};
  size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return broken;
  head.method = line.substr(0, first);
  head.target = line.substr(first + 1, last - first - 1);
  std::string_view version = line.substr(last + 1);
  bool good = is_token(head.method) && head.target.starts_with('/') && is_printable(head.target) &&
              head.target.find_first_of(" \t") == std::string::npos;
  if (!good || !version.starts_with("HTTP/")) return broken;
  old = version == "HTTP/1.0";
  if (!old && version != "HTTP/1.1")
    return HttpError{505, "only HTTP/1.1 and HTTP/1.0 are supported"};
  if (head.target.size() > kTargetBytesMax)
    return HttpError{414, fmt::format("the address is longer than {} bytes", kTargetBytesMax)};
  std::string_view path = std::string_view(head.target).substr(0, head.target.find('?'));
  std::string allowed(methods(path));
  if (allowed.empty())
    return HttpError{404, fmt::format("there is no resource for {} {}", head.method, path)};
  if ((", " + allowed + ",").find(" " + head.method + ",") == std::string::npos)
    return HttpError{405, fmt::format("{} supports {}, not {}", path, allowed, head.method),
                     allowed};
  return {};
}

}  // namespace

size_t end_of_head(std::string_view text) {
  size_t end = text.find("\r\n\r\n"), odd = text.find("\n\n");  // the latter is rejected at once
  if (end == std::string_view::npos && odd == std::string_view::npos) return 0;
  return end < odd ? end + 4 : odd + 2;
}

std::variant<RequestHead, HttpError> read_head(std::string_view text, uint64_t body_max,
                                               Methods methods) {
  if (!text.ends_with("\r\n\r\n")) return HttpError{400, "lines end with CR LF"};
  text.remove_suffix(2);
  RequestHead head;
  bool old = false;
  std::vector<Header> headers;
  for (bool first = true; !text.empty(); first = false) {
    size_t end = text.find("\r\n");
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    if (first) {
      if (auto error = read_request_line(line, methods, head, old)) return *error;
      continue;
    }
    size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon)) || !is_printable(line))
      return HttpError{400, "a header is not `Name: value` in one line"};
    headers.push_back({lowered(line.substr(0, colon)), trimmed(line.substr(colon + 1))});
  }
  if (auto error = check_host(headers, old)) return *error;
  if (auto error = read_framing(headers, old, body_max, head)) return *error;
  head.close = old || has_word(values_of(headers, "connection"), "close");
  if (auto codings = values_of(headers, "accept-encoding"); !codings.empty())
    head.accept_encoding = codings[0];
  return head;
}

ChunkedDecoder::State ChunkedDecoder::decode(std::string& in, std::string& body) {
  size_t at = 0;
  State state = State::more;
  for (size_t before = SIZE_MAX; state == State::more && at != before;) {
    before = at;
    state = step(in, at, body);
  }
  in.erase(0, at);
  return state;
}

/// One frame line, or a part of the data. Leaves `at` unchanged if more bytes are needed.
ChunkedDecoder::State ChunkedDecoder::step(std::string_view in, size_t& at, std::string& body) {
  if (part_ == Part::data) {
    size_t taken = std::min<uint64_t>(left_, in.size() - at);
    body.append(in.substr(at, taken));
    at += taken;
    left_ -= taken;
    if (left_ == 0) part_ = Part::data_end;
    return State::more;
  }
  size_t end = in.find("\r\n", at);
  size_t line_max = part_ == Part::data_end ? 0 : kChunkLineMax;
  if (end == std::string_view::npos)
    return in.size() - at > line_max + 1 ? State::broken : State::more;
  std::string_view line = in.substr(at, end - at);
  if (line.size() > line_max) return State::broken;
  at = end + 2;
  if (part_ == Part::data_end) {
    part_ = Part::size;
    return State::more;
  }
  if (part_ == Part::trailer) {
    trailer_bytes_ += line.size() + 2;
    if (line.empty()) return State::whole;
    return trailer_bytes_ > kTrailerBytesMax ? State::broken : State::more;
  }
  std::string_view digits = trimmed(line.substr(0, line.find(';')));
  auto [last, error] = std::from_chars(digits.data(), digits.data() + digits.size(), left_, 16);
  if (error != std::errc() || last != digits.data() + digits.size() || !is_printable(line))
    return State::broken;
  if (left_ > body_max_ - std::min<uint64_t>(body_max_, body.size())) return State::too_large;
  part_ = left_ == 0 ? Part::trailer : Part::data;
  return State::more;
}

}  // namespace flow
