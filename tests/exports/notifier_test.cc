// What webhooks are signed with, and how they are named.
#include "engine/exports/notifier.hpp"

#include <catch2/catch.hpp>

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
