// Access control of the page: by the token of the link, by a key, or by the cookie that a browser
// gets for either. Pure, but for the random tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/page/page_routes.hpp"
#include "engine/page/wrong_keys.hpp"
#include "engine/serve/http/http_request.hpp"
#include "engine/serve/http/http_response.hpp"

namespace flow {

/// Random texts of 43 characters, each for one purpose.
struct PageTokens {
  std::string link;    // in the link that is printed
  std::string cookie;  // what a browser gets for it; no script can read it
  std::string action;  // what the page sends with an action, in the header X-Flow-Token
  std::vector<std::string> key_cookies = {};  // what a browser gets for each key

  /// `keys`: how many the page has.
  static PageTokens make(size_t keys);
};

/// Identifies a key without revealing it: the first 8 hexadecimal digits of its SHA-256.
std::string page_key_fingerprint(std::string_view key);

/// How the page can be reached.
struct PageExposure {
  bool is_encrypted = false;            // by TLS
  std::vector<std::string> keys = {};   // each permits to sign in; none: only by the link
  std::vector<std::string> names = {};  // that lead to this machine, beyond those of loopback
};

/// One thread at a time uses it.
class PageAccess {
 public:
  using Clock = WrongKeys::Clock;

  /// `port`: where the page listens. `tokens` has a cookie for each key of `exposure`.
  PageAccess(PageTokens tokens, uint16_t port, PageExposure exposure = {});

  const PageTokens& tokens() const { return tokens_; }
  /// Whether a browser without the cookie sees where it can enter a key.
  bool wants_key(const HttpRequest& request) const;
  /// page_key_fingerprint() of the key that permits the request; "" if the link does.
  std::string key_fingerprint(const HttpRequest& request) const;
  /// The answer to a key in the header X-Flow-Key: the key's cookie, if it is one of the keys.
  HttpResponse sign_in(const HttpRequest& request) const;
  /// The answer to a request that is not permitted, or that exchanges the token of the link for a
  /// cookie. Nothing if the request is permitted. The request has all its fields. Wrong keys
  /// are counted, also those for sign_in().
  std::optional<HttpResponse> check(const HttpRequest& request, PageEndpoint endpoint,
                                    Clock::time_point now = Clock::now());

 private:
  std::optional<std::string_view> offered_key(const HttpRequest& request,
                                              PageEndpoint endpoint) const;
  std::optional<HttpResponse> check_key(const HttpRequest& request, PageEndpoint endpoint,
                                        Clock::time_point now);
  /// A cookie of the page or a key that permits a request.
  struct Permit {
    std::optional<size_t> key = {};  // the number of the key; none: the request came by the link
  };
  std::optional<Permit> permit_by_cookie(const HttpRequest& request) const;
  std::optional<Permit> permit_of(const HttpRequest& request) const;
  bool has_cookie(const HttpRequest& request) const {
    return permit_by_cookie(request).has_value();
  }
  bool is_known(const HttpRequest& request) const { return permit_of(request).has_value(); }
  std::optional<size_t> find_key(std::string_view given) const;
  bool is_key(std::string_view given) const { return find_key(given).has_value(); }
  bool is_own_name(std::string_view host) const;
  std::string cookie_fields(const std::string& cookie) const;
  bool is_own_origin(const HttpRequest& request) const;
  std::optional<HttpResponse> check_home(const HttpRequest& request) const;
  std::optional<HttpResponse> check_action(const HttpRequest& request) const;

  const PageTokens tokens_;
  const std::string cookie_name_;
  const PageExposure exposure_;
  WrongKeys wrong_;
};

/// The header lines of all responses of the page: what a browser may load, run and show.
std::string page_security_fields();

}  // namespace flow
