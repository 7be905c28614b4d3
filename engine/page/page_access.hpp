// Who may see the page: a browser that came by the link, and then has its cookie. Pure, but for the
// random tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "engine/page/page_routes.hpp"
#include "engine/serve/http/http_request.hpp"
#include "engine/serve/http/http_response.hpp"

namespace flow {

/// Random texts of 43 characters, each for one purpose.
struct PageTokens {
  std::string link;    // in the link that is printed
  std::string cookie;  // what a browser gets for it; no script can read it
  std::string action;  // what the page sends with an action, in the header X-Flow-Token

  static PageTokens make();
};

class PageAccess {
 public:
  /// `port`: where the page listens.
  PageAccess(PageTokens tokens, uint16_t port);

  const PageTokens& tokens() const { return tokens_; }
  /// The answer to a request that is not permitted, or that exchanges the token of the link for a
  /// cookie. Nothing if the request is permitted. The request has all its fields.
  std::optional<HttpResponse> check(const HttpRequest& request, PageEndpoint endpoint) const;

 private:
  bool has_cookie(const HttpRequest& request) const;
  std::optional<HttpResponse> check_home(const HttpRequest& request) const;
  std::optional<HttpResponse> check_action(const HttpRequest& request) const;

  const PageTokens tokens_;
  const std::string cookie_name_;
};

/// The header lines of all responses of the page: what a browser may load, run and show.
std::string page_security_fields();

}  // namespace flow
