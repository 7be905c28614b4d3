#include "engine/base/remote_url.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace flow {

namespace {

constexpr size_t kUrlMax = 8192;
constexpr size_t kKeyMax = 1024;  // S3's own limit
constexpr size_t kNameMax = 200;  // of a file name

bool is_digit(char c) { return '0' <= c && c <= '9'; }
bool is_letter(char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z'); }
char lower(char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), lower);
  return out;
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  c = lower(c);
  return 'a' <= c && c <= 'f' ? c - 'a' + 10 : -1;
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

/// Encodes what may not appear in a URL; escapes of the user stay.
std::string fitted(std::string_view text) {
  std::string out;
  for (char c : text) {
    unsigned char byte = static_cast<unsigned char>(c);
    bool is_unfit = byte <= 0x20 || byte >= 0x7f ||
                    std::string_view("\"<>\\^`{|}").find(c) != std::string_view::npos;
    if (is_unfit)
      out += fmt::format("%{:02X}", byte);
    else
      out += c;
  }
  return out;
}

struct Authority {
  std::string user_info, host;
  uint16_t port = 0;
};

/// The parts of `user:password@host:port`; "" or what is wrong.
std::string parse_authority(std::string_view text, Authority& out) {
  if (size_t at = text.rfind('@'); at != std::string_view::npos) {
    out.user_info = text.substr(0, at);
    text.remove_prefix(at + 1);
  }
  size_t host_end = 0;
  if (text.starts_with('[')) {
    host_end = text.find(']');
    if (host_end == std::string_view::npos) return "the address in its brackets has no end";
    host_end++;
    bool is_address = host_end > 2 && std::ranges::all_of(text.substr(1, host_end - 2), [](char c) {
                        return hex_value(c) >= 0 || c == ':' || c == '.';
                      });
    if (!is_address) return "the address in its brackets is not an IPv6 address";
  } else {
    host_end = std::min(text.find(':'), text.size());
    bool is_name = host_end > 0 && std::ranges::all_of(text.substr(0, host_end), [](char c) {
                     return is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_';
                   });
    if (!is_name) return "its host is not a name of letters, digits, `-`, `.` and `_`";
  }
  out.host = lower_case(text.substr(0, host_end));
  text.remove_prefix(host_end);
  if (text.empty()) return "";
  if (!text.starts_with(':')) return "its host is followed by other text than a port";
  text.remove_prefix(1);
  if (text.empty()) return "";
  uint32_t port = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (failed != std::errc() || end != text.data() + text.size() || port == 0 || port > 65535)
    return "its port is not a number from 1 to 65535";
  out.port = static_cast<uint16_t>(port);
  return "";
}

uint16_t default_port(std::string_view scheme) { return scheme == "https" ? 443 : 80; }

bool begins_with(std::string_view text, std::string_view scheme) {
  return text.size() > scheme.size() + 2 && lower_case(text.substr(0, scheme.size())) == scheme &&
         text.substr(scheme.size(), 3) == "://";
}

size_t scheme_size(std::string_view text) { return text.find("://") + 3; }

/// Removes `.` and `..` of a path that a redirect names relative to another.
std::string without_dots(std::string_view path) {
  std::vector<std::string_view> parts;
  bool is_folder = false;
  for (size_t at = 1; at <= path.size();) {
    size_t end = std::min(path.find('/', at), path.size());
    std::string_view part = path.substr(at, end - at);
    is_folder = part == "." || part == ".." || (end == path.size() && part.empty());
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (part != "." && !(part.empty() && end == path.size())) {
      parts.push_back(part);
    }
    at = end + 1;
  }
  std::string out;
  for (std::string_view part : parts) out.append("/").append(part);
  return is_folder || out.empty() ? out + "/" : out;
}

}  // namespace

bool is_s3_url(std::string_view text) { return begins_with(text, "s3"); }

bool is_remote_url(std::string_view text) {
  return begins_with(text, "http") || begins_with(text, "https") || is_s3_url(text);
}

Result<Url> parse_url(std::string_view text) {
  std::string shown = display_url(text);
  auto invalid = [&](std::string_view why) {
    return user_error(fmt::format("the URL `{}` is not valid: {}", shown, why));
  };
  if (text.size() > kUrlMax) return invalid(fmt::format("it has more than {} bytes", kUrlMax));
  if (has_control(text)) return invalid("it has control characters");
  if (!begins_with(text, "http") && !begins_with(text, "https"))
    return invalid("it does not begin with http:// or https://");
  Url url;
  url.scheme = lower_case(text.substr(0, text.find("://")));
  text.remove_prefix(scheme_size(text));
  text = text.substr(0, text.find('#'));
  size_t authority_end = std::min(text.find_first_of("/?"), text.size());
  Authority authority;
  std::string wrong = parse_authority(text.substr(0, authority_end), authority);
  if (!wrong.empty()) return invalid(wrong);
  url.user_info = std::move(authority.user_info);
  url.host = std::move(authority.host);
  url.port = authority.port == default_port(url.scheme) ? 0 : authority.port;
  text.remove_prefix(authority_end);
  size_t path_end = std::min(text.find('?'), text.size());
  url.path = fitted(text.substr(0, path_end));
  if (url.path.empty()) url.path = "/";
  if (path_end < text.size()) url.query = fitted(text.substr(path_end + 1));
  return url;
}

std::string host_header(const Url& url) {
  return url.port == 0 ? url.host : fmt::format("{}:{}", url.host, url.port);
}

std::string request_text(const Url& url) {
  return fmt::format("{}://{}{}{}{}", url.scheme, host_header(url), url.path,
                     url.query.empty() ? "" : "?", url.query);
}

bool is_same_origin(const Url& one, const Url& other) {
  return one.scheme == other.scheme && one.host == other.host && one.port == other.port;
}

Result<Url> resolve_url(const Url& from, std::string_view location) {
  if (location.starts_with("//")) return parse_url(from.scheme + ":" + std::string(location));
  size_t colon = location.find("://");
  if (colon != std::string_view::npos && location.find_first_of("/?#") == colon + 1)
    return parse_url(location);
  Url base = from;
  base.user_info.clear();
  base.query.clear();
  base.path.clear();
  std::string origin = request_text(base);
  location = location.substr(0, location.find('#'));
  if (location.empty()) return from;
  if (location.starts_with('?')) return parse_url(origin + from.path + std::string(location));
  std::string folder =
      location.starts_with('/') ? "" : from.path.substr(0, from.path.rfind('/') + 1);
  std::string target = folder + std::string(location);
  size_t path_end = std::min(target.find('?'), target.size());
  return parse_url(origin + without_dots(target.substr(0, path_end)) + target.substr(path_end));
}

std::string display_url(std::string_view text) {
  if (!is_remote_url(text)) {
    size_t at = text.rfind('@');
    return std::string(at == std::string_view::npos ? text.substr(0, text.find('?')) : "…");
  }
  if (is_s3_url(text)) return std::string(text);
  size_t begin = scheme_size(text);
  std::string_view rest = text.substr(begin);
  size_t authority_end = std::min(rest.find_first_of("/?#"), rest.size());
  size_t at = rest.substr(0, authority_end).rfind('@');
  std::string out(text.substr(0, begin));
  if (at != std::string_view::npos) rest.remove_prefix(at + 1);
  rest = rest.substr(0, rest.find('#'));
  size_t query = rest.find('?');
  out += rest.substr(0, query);
  if (query != std::string_view::npos) out += "?…";
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return out;
}

std::string url_secrets(std::string_view text) {
  if (is_s3_url(text)) return "";
  auto url = parse_url(text);
  bool has_secrets = url.ok() && !(url->user_info.empty() && url->query.empty());
  return has_secrets ? url->user_info + '\0' + url->query : "";
}

std::string file_name_of(std::string_view text) {
  std::string path;
  if (is_s3_url(text)) {
    path = std::string(text.substr(scheme_size(text)));
    size_t slash = path.find('/');
    path = slash == std::string::npos ? "" : path.substr(slash);
  } else if (auto url = parse_url(text); url.ok()) {
    path = url->path;
  }
  while (path.ends_with('/')) path.pop_back();
  std::string name = path.substr(path.rfind('/') + 1);
  if (!is_s3_url(text)) name = percent_decode(name);
  for (char& c : name) {
    if (c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '_';
  }
  if (name.size() > kNameMax) name = name.substr(name.size() - kNameMax);
  return name.empty() || name == "." || name == ".." ? "download" : name;
}

Result<S3Location> parse_s3_url(std::string_view text) {
  std::string shown = display_url(text);
  auto invalid = [&](std::string_view why) {
    return user_error(fmt::format("the URL `{}` is not valid: {}", shown, why));
  };
  if (!is_s3_url(text)) return invalid("it does not begin with s3://");
  if (has_control(text)) return invalid("it has control characters");
  std::string_view rest = text.substr(scheme_size(text));
  size_t slash = std::min(rest.find('/'), rest.size());
  S3Location out{std::string(rest.substr(0, slash)), ""};
  bool is_bucket = out.bucket.size() >= 3 && out.bucket.size() <= 63 &&
                   !out.bucket.starts_with('.') && std::ranges::all_of(out.bucket, [](char c) {
                     return is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_';
                   });
  if (!is_bucket)
    return invalid("a bucket has 3 to 63 letters, digits, `-`, `.` and `_`: write s3://BUCKET/KEY");
  if (slash < rest.size()) out.key = rest.substr(slash + 1);
  if (out.key.size() > kKeyMax)
    return invalid(fmt::format("its key has more than {} bytes", kKeyMax));
  return out;
}

std::string to_text(const S3Location& location) {
  return fmt::format("s3://{}/{}", location.bucket, location.key);
}

std::string percent_encode(std::string_view text, bool keep_slash) {
  std::string out;
  for (char c : text) {
    bool stays = is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_' || c == '~' ||
                 (keep_slash && c == '/');
    if (stays)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i++) {
    bool is_escape = text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 &&
                     hex_value(text[i + 2]) >= 0;
    if (!is_escape) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(16 * hex_value(text[i + 1]) + hex_value(text[i + 2]));
    i += 2;
  }
  return out;
}

}  // namespace flow
