#include "engine/page/page_access.hpp"

#include <catch2/catch.hpp>

#include "flow/digest.hpp"

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

TEST_CASE("with TLS and keys a key is exchanged for a cookie, and permits a program") {
  PageExposure exposure;
  exposure.is_encrypted = true;
  exposure.keys = {"first-key", "second-key"};
  PageAccess access({"link", "cookie", "action", {"cookie-1", "cookie-2"}}, 8080, exposure);
  HttpRequest home = request_of("GET", {{"Host", "models.example:8080"}});
  CHECK(access.wants_key(home));
  CHECK_FALSE(access.check(home, PageEndpoint::home).has_value());
  CHECK_FALSE(access.check(home, PageEndpoint::asset).has_value());
  CHECK(access.check(home, PageEndpoint::runs)->status == 401);
  HttpRequest enter = request_of("POST", {{"Host", "models.example:8080"},
                                          {"Origin", "https://models.example:8080"},
                                          {"X-Flow-Key", "second-key"}});
  HttpResponse entered = access.sign_in(enter);
  CHECK(entered.status == 200);
  CHECK(entered.fields ==
        "Set-Cookie: flow_page_8080=cookie-2; HttpOnly; SameSite=Strict; Path=/; Secure\r\n");
  for (const char* wrong : {"", "first", "second-key2", "cookie", "cookie-2", "link"}) {
    enter.fields[2].value = wrong;
    CHECK(access.sign_in(enter).status == 403);
  }
  enter.fields = {{"Host", "models.example:8080"}, {"X-Flow-Key", "first-key"}};
  CHECK(access.sign_in(enter).status == 403);  // no origin
  HttpRequest program =
      request_of("GET", {{"Host", "10.0.0.7:8080"}, {"Authorization", "Bearer first-key"}});
  CHECK_FALSE(access.check(program, PageEndpoint::runs).has_value());
  CHECK_FALSE(access.wants_key(program));
  program.fields[1].value = "Bearer link";
  CHECK(access.check(program, PageEndpoint::runs)->status == 401);
}

TEST_CASE("each key has its own cookie and mark, and the link has none") {
  PageExposure exposure;
  exposure.keys = {"first-key", "second-key", "first-key"};
  PageAccess access({"link", "cookie", "action", {"cookie-1", "cookie-2", "cookie-3"}}, 8080,
                    exposure);
  auto mark = [&](std::vector<HttpField> fields) {
    fields.push_back({"Host", "127.0.0.1:8080"});
    return access.key_fingerprint(request_of("POST", std::move(fields)));
  };
  auto cookie = [&](const std::string& value) {
    return mark({{"Cookie", "flow_page_8080=" + value}});
  };
  const std::string first = page_key_fingerprint("first-key"),
                    second = page_key_fingerprint("second-key");
  CHECK(first.size() == 8);
  CHECK(first != second);
  CHECK(first == sha256("first-key").hex().substr(0, 8));
  CHECK(cookie("cookie").empty());
  CHECK(cookie("cookie-1") == first);
  CHECK(cookie("cookie-2") == second);
  CHECK(cookie("cookie-3") == first);  // of the same key on another line
  CHECK(cookie("cookie-4").empty());
  CHECK(cookie("first-key").empty());
  CHECK(mark({{"Cookie", "flow_page_8080=old; flow_page_8080=cookie-2"}}) == second);
  CHECK(mark({{"Authorization", "Bearer second-key"}}) == second);
  CHECK(mark({{"Authorization", "Bearer second"}}).empty());
  CHECK(mark({{"Cookie", "flow_page_8080=cookie"}, {"Authorization", "Bearer first-key"}}).empty());
  CHECK(mark({{"X-Flow-Key", "first-key"}}).empty());
  for (const char* key : {"cookie-1", "cookie-2", "cookie-3"}) {
    HttpRequest request = request_of(
        "GET", {{"Host", "127.0.0.1:8080"}, {"Cookie", std::string("flow_page_8080=") + key}});
    CHECK_FALSE(access.check(request, PageEndpoint::runs).has_value());
  }
}

TEST_CASE("a key gets the same cookie at each sign-in, whatever line repeats it") {
  PageExposure exposure;
  exposure.keys = {"first-key", "second-key", "second-key"};
  PageAccess access({"link", "cookie", "action", {"cookie-1", "cookie-2", "cookie-3"}}, 8080,
                    exposure);
  auto enter = [&](const std::string& key) {
    return access
        .sign_in(request_of(
            "POST",
            {{"Host", "127.0.0.1:8080"}, {"Origin", "http://127.0.0.1:8080"}, {"X-Flow-Key", key}}))
        .fields;
  };
  CHECK(enter("first-key").starts_with("Set-Cookie: flow_page_8080=cookie-1;"));
  CHECK(enter("second-key").starts_with("Set-Cookie: flow_page_8080=cookie-2;"));
  CHECK(enter("second-key") == enter("second-key"));
}

TEST_CASE("without keys nobody can sign in") {
  HttpRequest enter = request_of(
      "POST",
      {{"Host", "127.0.0.1:8080"}, {"Origin", "http://127.0.0.1:8080"}, {"X-Flow-Key", ""}});
  CHECK(access_of_test().sign_in(enter).status == 403);
  CHECK_FALSE(access_of_test().wants_key(enter));
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
  PageTokens one = PageTokens::make(0), other = PageTokens::make(2);
  CHECK(one.key_cookies.empty());
  REQUIRE(other.key_cookies.size() == 2);
  CHECK(other.key_cookies[0].size() == 43);
  CHECK(other.key_cookies[0] != other.key_cookies[1]);
  CHECK(other.key_cookies[0] != other.cookie);
  CHECK(one.link.size() == 43);
  CHECK(one.link != other.link);
  CHECK(one.link != one.cookie);
  CHECK(one.cookie != one.action);
}

TEST_CASE("wrong tokens of the link are not counted") {
  PageAccess access = access_of_test();
  HttpRequest request = request_of("GET", {{"Host", "127.0.0.1:8080"}});
  auto home = [&](const std::string& query) {
    request.query = query;
    auto answer = access.check(request, PageEndpoint::home);
    REQUIRE(answer.has_value());
    return answer->status;
  };
  for (int i = 0; i < 20; i++) CHECK(home("token=wrong" + std::to_string(i)) == 403);
  CHECK(home("token=link") == 303);
}

TEST_CASE("after ten wrong keys within a minute none of the address is looked at") {
  PageExposure exposure;
  exposure.keys = {"first-key"};
  PageAccess access({"link", "cookie", "action", {"cookie-1"}}, 8080, exposure);
  const auto begin = PageAccess::Clock::now();
  using std::chrono::seconds;
  auto ask = [&](const std::string& key, const std::string& address, seconds at) {
    HttpRequest request =
        request_of("GET", {{"Host", "127.0.0.1:8080"}, {"Authorization", "Bearer " + key}});
    request.client_address = address;
    auto refusal = access.check(request, PageEndpoint::runs, begin + at);
    return refusal ? *refusal : HttpResponse{200, "", "", ""};
  };
  for (int i = 0; i < 20; i++) CHECK(ask("always this", "127.0.0.1", seconds(0)).status == 401);
  for (int i = 0; i < 9; i++) CHECK(ask(std::to_string(i), "127.0.0.1", seconds(i)).status == 401);
  HttpResponse refused = ask("first-key", "127.0.0.1", seconds(20));
  CHECK(refused.status == 429);
  CHECK(refused.fields == "Retry-After: 40\r\n");
  CHECK(ask("first-key", "127.0.0.2", seconds(20)).status == 200);
  CHECK(ask("first-key", "127.0.0.1", seconds(60)).status == 200);
}

TEST_CASE("wrong keys of browsers and of programs count together, also beside a cookie") {
  PageExposure exposure;
  exposure.keys = {"first-key"};
  PageAccess access({"link", "cookie", "action", {"cookie-1"}}, 8080, exposure);
  const auto now = PageAccess::Clock::now();
  auto enter = [&](const std::string& key) {
    HttpRequest request = request_of("POST", {{"Host", "127.0.0.1:8080"},
                                              {"Origin", "http://127.0.0.1:8080"},
                                              {"X-Flow-Key", key},
                                              {"Cookie", "flow_page_8080=cookie"}});
    auto refusal = access.check(request, PageEndpoint::sign_in, now);
    return refusal ? refusal->status : access.sign_in(request).status;
  };
  auto ask = [&](const std::string& key) {
    HttpRequest request =
        request_of("GET", {{"Host", "127.0.0.1:8080"}, {"Authorization", "Bearer " + key}});
    auto refusal = access.check(request, PageEndpoint::runs, now);
    return refusal ? refusal->status : 200;
  };
  for (int i = 0; i < 5; i++) {
    CHECK(enter("wrong " + std::to_string(i)) == 403);
    CHECK(ask("bad " + std::to_string(i)) == 401);
    CHECK(ask("first-key") == (i < 4 ? 200 : 429));
  }
  CHECK(enter("first-key") == 429);
}

TEST_CASE(
    "wrong secrets of many clients take bounded memory, and a network of IPv6 is one client") {
  WrongKeys wrong;
  const auto now = WrongKeys::Clock::now();
  for (size_t i = 0; i < WrongKeys::kWrongMax; i++)
    wrong.add("2001:db8::" + std::to_string(i) + "%eth0", std::to_string(i), now);
  CHECK(wrong.clients() == 1);
  CHECK(wrong.wait("2001:db8::ffff", now) == WrongKeys::kWindow);
  CHECK(wrong.wait("2001:db8:0:1::1", now).count() == 0);
  for (size_t i = 0; i < 3 * WrongKeys::kClientsMax; i++)
    wrong.add("10.0." + std::to_string(i / 256) + "." + std::to_string(i % 256), "key",
              now + std::chrono::milliseconds(i));
  CHECK(wrong.clients() == WrongKeys::kClientsMax);
}
