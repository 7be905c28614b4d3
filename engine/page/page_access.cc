#include "engine/page/page_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "engine/base/address.hpp"
#include "engine/crypto/seal.hpp"
#include "engine/serve/http/field_text.hpp"
#include "flow/digest.hpp"

namespace flow {

namespace {

constexpr size_t kTokenLetters = 43;

/// 43 of 64 letters: 258 bits.
std::string make_token() {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string token = random_bytes(kTokenLetters);
  for (char& c : token) c = kLetters[static_cast<unsigned char>(c) % kLetters.size()];
  return token;
}

std::string_view field_of(const HttpRequest& request, std::string_view name) {
  for (const HttpField& field : request.fields)
    if (equal_names(field.name, name)) return field.value;
  return {};
}

/// The number of the text that `given` is, by the first of equal ones. The time does not depend on
/// how much of a text is right, or on which one it is.
std::optional<size_t> find_secret(const std::vector<std::string>& secrets, std::string_view given) {
  std::optional<size_t> found;
  for (size_t i = secrets.size(); i-- > 0;)
    if (secrets_equal(given, secrets[i])) found = i;
  return found;
}

/// The host of `Host`, which the reader of requests has checked, without its port.
std::string_view name_of_host(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

/// The key that a program sends with each request.
std::optional<std::string_view> bearer_of(const HttpRequest& request) {
  constexpr std::string_view kScheme = "Bearer ";
  std::string_view authorization = field_of(request, "Authorization");
  if (!authorization.starts_with(kScheme)) return std::nullopt;
  return authorization.substr(kScheme.size());
}

/// A page for people: the link is wrong or its token is missing.
HttpResponse refusal_page(int status, std::string_view title, std::string_view text) {
  return {status,
          fmt::format("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title>"
                      "<h1>{0}</h1><p>{1}</p></html>\n",
                      title, text),
          "text/html; charset=utf-8"};
}

}  // namespace

PageTokens PageTokens::make(size_t keys) {
  PageTokens tokens{make_token(), make_token(), make_token()};
  for (size_t i = 0; i < keys; i++) tokens.key_cookies.push_back(make_token());
  return tokens;
}

std::string page_key_fingerprint(std::string_view key) {
  constexpr size_t kDigits = 8;
  return sha256(key).hex().substr(0, kDigits);
}

PageAccess::PageAccess(PageTokens tokens, uint16_t port, PageExposure exposure)
    : tokens_(std::move(tokens)),
      cookie_name_(fmt::format("flow_page_{}", port)),
      exposure_(std::move(exposure)) {}

std::optional<size_t> PageAccess::find_key(std::string_view given) const {
  return find_secret(exposure_.keys, given);
}

std::string PageAccess::cookie_fields(const std::string& cookie) const {
  return fmt::format("Set-Cookie: {}={}; HttpOnly; SameSite=Strict; Path=/{}\r\n", cookie_name_,
                     cookie, exposure_.is_encrypted ? "; Secure" : "");
}

/// By the cookie, or as a program that sends a key with each request.
std::optional<PageAccess::Permit> PageAccess::permit_of(const HttpRequest& request) const {
  if (auto permit = permit_by_cookie(request)) return permit;
  auto bearer = bearer_of(request);
  if (!bearer) return std::nullopt;
  auto key = find_key(*bearer);
  return key ? std::optional(Permit{key}) : std::nullopt;
}

std::string PageAccess::key_fingerprint(const HttpRequest& request) const {
  auto permit = permit_of(request);
  return permit && permit->key ? page_key_fingerprint(exposure_.keys[*permit->key]) : "";
}

/// The key by which the request asks for access; nothing if it has none or needs none. A browser
/// with a cookie may still sign in with another key.
std::optional<std::string_view> PageAccess::offered_key(const HttpRequest& request,
                                                        PageEndpoint endpoint) const {
  if (exposure_.keys.empty()) return std::nullopt;
  if (endpoint == PageEndpoint::sign_in && is_own_origin(request))
    return field_of(request, "X-Flow-Key");
  if (has_cookie(request)) return std::nullopt;
  return bearer_of(request);
}

// The token of the link is too long to be guessed, and is not counted: a page of another site could
// have the browser send wrong ones.
std::optional<HttpResponse> PageAccess::check_key(const HttpRequest& request, PageEndpoint endpoint,
                                                  Clock::time_point now) {
  auto key = offered_key(request, endpoint);
  if (!key) return std::nullopt;
  auto wait = wrong_.wait(request.client_address, now);
  if (wait.count() == 0) {
    if (!is_key(*key)) wrong_.add(request.client_address, *key, now);
    return std::nullopt;
  }
  // Also for a right one: otherwise it could be told from the others.
  HttpResponse response = error_response(
      429,
      fmt::format("too many wrong keys came from this address: try again in {} s", wait.count()));
  response.fields = fmt::format("Retry-After: {}\r\n", wait.count());
  return response;
}

bool PageAccess::wants_key(const HttpRequest& request) const {
  return !exposure_.keys.empty() && PageQuery(request.query).get("token").empty() &&
         !is_known(request);
}

// A browser sends an Origin with each POST. Another port of this machine is another site.
bool PageAccess::is_own_origin(const HttpRequest& request) const {
  const char* scheme = exposure_.is_encrypted ? "https" : "http";
  return equal_names(field_of(request, "Origin"),
                     fmt::format("{}://{}", scheme, field_of(request, "Host")));
}

HttpResponse PageAccess::sign_in(const HttpRequest& request) const {
  if (!is_own_origin(request))
    return error_response(403, "signing in needs the Origin of the page itself");
  auto key = find_key(field_of(request, "X-Flow-Key"));
  if (!key) return error_response(403, "this is not a key of the page");
  HttpResponse response{200, "{}"};
  response.fields = cookie_fields(tokens_.key_cookies.at(*key));
  return response;
}

/// A name that a certificate vouches for, or one of loopback: another name that leads here belongs
/// to a web site that tries DNS rebinding. Behind TLS any address is good: the certificate decides.
bool PageAccess::is_own_name(std::string_view host) const {
  return is_loopback(host) || exposure_.is_encrypted ||
         std::ranges::find(exposure_.names, host) != exposure_.names.end();
}

std::optional<PageAccess::Permit> PageAccess::permit_by_cookie(const HttpRequest& request) const {
  std::string_view cookies = field_of(request, "Cookie");
  while (!cookies.empty()) {
    std::string_view cookie = cookies.substr(0, cookies.find(';'));
    cookies.remove_prefix(std::min(cookie.size() + 1, cookies.size()));
    cookie = without_blanks(cookie);
    size_t equals = cookie.find('=');
    if (equals == std::string_view::npos || cookie.substr(0, equals) != cookie_name_) continue;
    std::string_view value = cookie.substr(equals + 1);
    if (secrets_equal(value, tokens_.cookie)) return Permit{};
    if (auto key = find_secret(tokens_.key_cookies, value)) return Permit{key};
  }
  return std::nullopt;
}

std::optional<HttpResponse> PageAccess::check_home(const HttpRequest& request) const {
  std::string token = PageQuery(request.query).get("token");
  if (token.empty()) {
    if (is_known(request) || wants_key(request)) return std::nullopt;
    return refusal_page(401, "This page needs its link",
                        "Open the link that <code>flow ui</code> printed: it contains a token.");
  }
  if (!secrets_equal(token, tokens_.link))
    return refusal_page(403, "The token is wrong",
                        "The link is of an earlier <code>flow ui</code>, or it was cut: open the "
                        "link that the present one printed.");
  // Without the token in the address, it is neither in the history nor on the screen.
  HttpResponse response{303, "", "text/plain"};
  response.fields = "Location: /\r\n" + cookie_fields(tokens_.cookie);
  return response;
}

std::optional<HttpResponse> PageAccess::check_action(const HttpRequest& request) const {
  if (!is_own_origin(request))
    return error_response(403, "an action needs the Origin of the page itself");
  if (!secrets_equal(field_of(request, "X-Flow-Token"), tokens_.action))
    return error_response(403, "an action needs the header X-Flow-Token, as /api/session gives it");
  return std::nullopt;
}

std::optional<HttpResponse> PageAccess::check(const HttpRequest& request, PageEndpoint endpoint,
                                              Clock::time_point now) {
  std::string_view host = name_of_host(field_of(request, "Host"));
  if (!is_own_name(host))
    return error_response(403, fmt::format("the Host `{}` is not an address of loopback", host));
  if (auto refusal = check_key(request, endpoint, now)) return refusal;
  if (endpoint == PageEndpoint::home) return check_home(request);
  if (endpoint == PageEndpoint::sign_in) return std::nullopt;
  // What the sign-in page consists of; no file holds a secret.
  if (endpoint == PageEndpoint::asset && !exposure_.keys.empty()) return std::nullopt;
  if (!is_known(request))
    return error_response(401, "open the link that `flow ui` printed: it contains a token");
  if (request.method == "POST") return check_action(request);
  return std::nullopt;
}

std::string page_security_fields() {
  return "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
         "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
         "frame-ancestors 'none'\r\n"
         "X-Content-Type-Options: nosniff\r\n"
         "Referrer-Policy: no-referrer\r\n"
         "Cross-Origin-Opener-Policy: same-origin\r\n"
         "Cross-Origin-Resource-Policy: same-origin\r\n"
         "Cache-Control: no-store\r\n";
}

}  // namespace flow
