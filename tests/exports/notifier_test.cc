// The signatures of webhooks, their names in messages, and targets that answer in an unusual way.
#include "engine/exports/notifier.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <list>
#include <thread>

#include "engine/store/row_keys.hpp"
#include "tests/serve/upstream_socket.hpp"

using namespace flow;

// echo -n '1700000000.{"run":"r"}' | openssl dgst -sha256 -hmac key
TEST_CASE("a signature covers the time and the body") {
  CHECK(notify_signature("key", 1'700'000'000, R"({"run":"r"})") ==
        "t=1700000000,v1=1cd21764fabd913a25231e2402b1f71302fedd16349e887146c9f23ca0b932e9");
  CHECK(notify_signature("key", 1'700'000'001, R"({"run":"r"})") !=
        notify_signature("key", 1'700'000'000, R"({"run":"r"})"));
}

TEST_CASE("a target is named without what may be a secret") {
  CHECK(shown_target({false, "https://u:p@hooks.example:8443/T0P/SECRET?k=v", ""}) ==
        "the webhook at https://hooks.example:8443");
  CHECK(shown_target({false, "", "HOOK"}) == "the webhook of the variable HOOK");
  CHECK(shown_target({true, "mail ann", ""}) == "the command `mail ann`");
}

TEST_CASE("a webhook whose answer does not end holds no other, and its status decides") {
  UpstreamSocket slow, good;
  auto store = make_memory_store();
  Batch batch;
  auto add = [&](const std::string& run, const UpstreamSocket& socket) {
    NotifySettings to;
    to.targets = {{false, "http://127.0.0.1:" + std::to_string(socket.port) + "/", ""}};
    batch.put(Family::kv, notification_key(run, 1),
              encode_notification(notification_of_end(run, "failed", 1, to)));
  };
  add("r1", slow);
  add("r2", good);
  REQUIRE(store->commit(batch, false).ok());
  std::atomic<bool> has_arrived = false, has_failed = false;
  std::vector<std::string> warnings;
  Notifier notifier(
      *store,
      {.run_json = [](const core::RunId&) { return std::string("{}"); },
       .put =
           [&](const std::string&, const std::string& row) {
             Notification told = decode_notification(row);
             if (told.run == "r2" && told.is_done()) has_arrived = true;
             if (told.run == "r1" && told.is_done()) has_failed = true;
             return true;
           },
       .warn = [&](const core::RunId&, const std::string& text) { warnings.push_back(text); }},
      500);
  REQUIRE(notifier.start().ok());
  const std::string large(size_t{65} << 20, 'x');
  std::list<HttpPeer> dripping;
  while (!has_failed) {
    if (good.has_connection()) {
      HttpPeer peer = good.accept();
      peer.head();
      peer.read(2);
      peer.send("HTTP/1.1 200 OK\r\n\r\n" + large);
    }
    if (slow.has_connection()) {
      HttpPeer& peer = dripping.emplace_back(slow.accept());
      peer.head();
      peer.read(2);
      peer.send(has_arrived ? "HTTP/1.1 404 Not Found\r\n\r\n" + large
                            : "HTTP/1.1 503 Busy\r\nA: ");
    }
    if (!has_arrived)
      for (HttpPeer& peer : dripping) peer.send("b");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  notifier.finish();
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Catch::Contains("the server answered 404. It is not tried again"));
}
