#include "engine/serve/http/forwarded_fields.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "engine/serve/http/field_text.hpp"
#include "engine/serve/http/http_upload.hpp"

namespace flow {

namespace {

constexpr std::string_view kForwardedFor = "X-Forwarded-For";
constexpr std::string_view kForwardedProto = "X-Forwarded-Proto";
constexpr std::string_view kProxyPrefix = "Proxy-";

// Of one connection, or of the framing of a body.
constexpr std::array<std::string_view, 7> kHopFields = {
    "Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length"};

bool is_one_of(std::string_view name, const auto& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view each) { return equal_names(each, name); });
}

/// CGI and WSGI programs take `X_Forwarded_For` for `X-Forwarded-For`, which a client could send
/// beside the front's, and `Proxy` for the variable HTTP_PROXY.
bool is_ambiguous(std::string_view name) {
  std::string hyphened(name);
  std::ranges::replace(hyphened, '_', '-');
  return equal_names(name, "Proxy") ||
         (hyphened != name && is_one_of(hyphened, std::array{kForwardedFor, kForwardedProto}));
}

bool is_hop_field(std::string_view name) {
  return is_one_of(name, kHopFields) ||
         equal_names(name.substr(0, kProxyPrefix.size()), kProxyPrefix);
}

/// What the fields of this name list, without empty elements.
std::vector<std::string_view> elements_of(std::string_view name,
                                          const std::vector<HttpField>& fields) {
  std::vector<std::string_view> elements;
  for (const HttpField& field : fields) {
    if (!equal_names(field.name, name)) continue;
    for (std::string_view list = field.value; !list.empty();)
      if (std::string_view element = next_element(list); !element.empty())
        elements.push_back(element);
  }
  return elements;
}

void append(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ").append(value).append("\r\n");
}

}  // namespace

std::string forwarded_fields(const std::vector<HttpField>& fields) {
  std::string text;
  auto options = elements_of("Connection", fields);
  for (const HttpField& field : fields)
    if (!is_hop_field(field.name) && !is_one_of(field.name, options))
      append(text, field.name, field.value);
  return text;
}

bool asks_for_websocket(const std::vector<HttpField>& fields) {
  // A protocol may have a version: `websocket/13`.
  auto is_websocket = [](std::string_view protocol) {
    return equal_names(without_blanks(protocol.substr(0, protocol.find('/'))), "websocket");
  };
  return is_one_of("Upgrade", elements_of("Connection", fields)) &&
         std::ranges::any_of(elements_of("Upgrade", fields), is_websocket);
}

std::string forwarded_head(const HttpRequest& request) {
  std::string head = request.method + " " + request.target + " HTTP/1.1\r\n";
  std::string clients;
  bool has_body = !request.body.empty(), has_host = false;
  auto options = elements_of("Connection", request.fields);
  for (const auto& [name, value] : request.fields) {
    if (equal_names(name, "Content-Length") || equal_names(name, "Transfer-Encoding"))
      has_body = true;
    if (equal_names(name, "Host")) has_host = true;
    if (equal_names(name, kForwardedFor)) {
      clients += value + ", ";
      continue;
    }
    // The server that read the request has answered Expect. A client cannot have Host removed.
    bool is_dropped = is_hop_field(name) || is_ambiguous(name) || equal_names(name, "Expect") ||
                      equal_names(name, kForwardedProto) ||
                      (is_one_of(name, options) && !equal_names(name, "Host"));
    if (!is_dropped) append(head, name, value);
  }
  if (!has_host) append(head, "Host", "localhost");  // a client of HTTP/1.0
  append(head, kForwardedFor, clients + request.client_address);
  append(head, kForwardedProto, request.is_encrypted ? "https" : "http");
  std::optional<uint64_t> length = request.body.size();
  if (request.upload) length = request.upload->length();
  if (!length)
    append(head, "Transfer-Encoding", "chunked");
  else if (has_body)
    append(head, "Content-Length", std::to_string(*length));
  return head + "\r\n";
}

}  // namespace flow
