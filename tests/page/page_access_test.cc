#include "engine/page/page_access.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

PageAccess access_of_test() { return PageAccess({"link", "cookie", "action"}, 8080); }

HttpRequest request_of(const std::string& method, std::vector<HttpField> fields) {
  HttpRequest request;
  request.method = method;
  request.path = "/";
  request.fields = std::move(fields);
  return request;
}

int status_of_check(const HttpRequest& request, PageEndpoint endpoint) {
  auto refusal = access_of_test().check(request, endpoint);
  return refusal ? refusal->status : 200;
}

}  // namespace

TEST_CASE("the token of the link is exchanged for a cookie and leaves the address") {
  HttpRequest request = request_of("GET", {{"Host", "127.0.0.1:8080"}});
  request.query = "token=link";
  auto answer = access_of_test().check(request, PageEndpoint::home);
  REQUIRE(answer.has_value());
  CHECK(answer->status == 303);
  CHECK(answer->fields ==
        "Location: /\r\n"
        "Set-Cookie: flow_page_8080=cookie; HttpOnly; SameSite=Strict; Path=/\r\n");
}

TEST_CASE("without a token the page is refused, and with a wrong one") {
  HttpRequest request = request_of("GET", {{"Host", "127.0.0.1:8080"}});
  CHECK(status_of_check(request, PageEndpoint::home) == 401);
  CHECK(status_of_check(request, PageEndpoint::runs) == 401);
  CHECK(status_of_check(request, PageEndpoint::asset) == 401);
  for (const char* wrong : {"token=cookie", "token=lin", "token=link2"}) {
    request.query = wrong;
    CHECK(status_of_check(request, PageEndpoint::home) == 403);
  }
}

TEST_CASE("only the page's own cookie permits a request") {
  auto with = [](const std::string& cookies) {
    HttpRequest request = request_of("GET", {{"host", "localhost:9000"}, {"cookie", cookies}});
    return status_of_check(request, PageEndpoint::runs);
  };
  CHECK(with("flow_page_8080=cookie") == 200);
  CHECK(with("other=1; flow_page_8080=cookie ; last=2") == 200);
  CHECK(with("flow_page_8080=old; flow_page_8080=cookie") == 200);
  CHECK(with("flow_page_8081=cookie") == 401);
  CHECK(with("flow_page_8080=link") == 401);
  CHECK(with("flow_page_8080=") == 401);
  CHECK(with("flow_page_8080") == 401);
}

TEST_CASE("a name that is not of loopback is refused, whatever its cookie") {
  auto with = [](const std::string& host) {
    HttpRequest request = request_of("GET", {{"Host", host}, {"Cookie", "flow_page_8080=cookie"}});
    return status_of_check(request, PageEndpoint::runs);
  };
  CHECK(with("127.0.0.1:8080") == 200);
  CHECK(with("[::1]:8080") == 200);
  CHECK(with("localhost") == 200);
  CHECK(with("evil.example:8080") == 403);
  CHECK(with("127.0.0.1.evil.example") == 403);
  CHECK(with("192.168.0.7:8080") == 403);
  CHECK(with("intranet:8080") == 403);
  CHECK(with("") == 403);
}

TEST_CASE("an action needs the cookie, an origin and the page's own token") {
  std::vector<HttpField> fields = {{"Host", "127.0.0.1:8080"}};
  CHECK(status_of_check(request_of("POST", fields), PageEndpoint::cancel) == 401);
  fields.push_back({"Cookie", "flow_page_8080=cookie"});
  CHECK(status_of_check(request_of("POST", fields), PageEndpoint::cancel) == 403);
  fields.push_back({"X-Flow-Token", "action"});
  CHECK(status_of_check(request_of("POST", fields), PageEndpoint::cancel) == 403);
  fields.push_back({"Origin", "http://127.0.0.1:8080"});
  CHECK(status_of_check(request_of("POST", fields), PageEndpoint::cancel) == 200);
  fields[2].value = "link";
  CHECK(status_of_check(request_of("POST", fields), PageEndpoint::cancel) == 403);
}

TEST_CASE("tokens are long, and each start has others") {
  PageTokens one = PageTokens::make(), other = PageTokens::make();
  CHECK(one.link.size() == 43);
  CHECK(one.link != other.link);
  CHECK(one.link != one.cookie);
  CHECK(one.cookie != one.action);
}
