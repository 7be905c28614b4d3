// The rows of the notifications of a run's end.
#include "engine/runs/notifications.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "flow/value.hpp"

using namespace flow;

namespace {

NotifySettings settings() {
  return {{{true, "mail ann", "", true}, {false, "https://x/y", ""}, {false, "", "HOOK"}},
          "KEY",
          {"failed"},
          "/data",
          "mail ann"};
}

}  // namespace

TEST_CASE("the settings and the notification of a run survive their rows") {
  CHECK(decode_notify_settings(encode_notify_settings(settings())) == settings());
  Notification told = notification_of_end("20261121-051700-k3f9x2", "failed", 0x1234, settings());
  told.failed_since_ms = 7;
  CHECK(decode_notification(encode_notification(told)) == told);
  CHECK(told.delivery == "20261121-051700-k3f9x2-1234");
  CHECK_FALSE(told.is_done());
}

TEST_CASE("a later on_end replaces that of the run, and no other target") {
  NotifySettings replaced = settings();
  replace_on_end(replaced, "https://z/");
  CHECK(replaced.on_end == "https://z/");
  CHECK(replaced.targets == std::vector<NotifyTarget>{{false, "https://x/y", ""},
                                                      {false, "", "HOOK"},
                                                      {false, "https://z/", "", true}});
  replace_on_end(replaced, "mail bob");
  CHECK(replaced.targets.size() == 3);
  CHECK(replaced.targets.back() == NotifyTarget{true, "mail bob", "", true});
}

TEST_CASE("a target that is an option of its own as well is told once, and stays") {
  NotifySettings both;
  add_target(both, on_end_target("mail ann"));
  add_target(both, {true, "mail ann", ""});
  REQUIRE(both.targets.size() == 1);
  replace_on_end(both, "mail bob");
  CHECK(both.targets ==
        std::vector<NotifyTarget>{{true, "mail ann", ""}, {true, "mail bob", "", true}});
  replace_on_end(both, "mail ann");
  CHECK(both.targets == std::vector<NotifyTarget>{{true, "mail ann", ""}});
}

TEST_CASE("a row that does not say which target is on_end has it by its text") {
  auto target = [](const char* text) {
    return Value::map({{"command", Value(true)}, {"text", Value(text)}, {"variable", Value("")}});
  };
  NotifySettings old = decode_notify_settings(
      encode_value(Value::map({{"targets", Value::list({target("mail ann"), target("mail bob")})},
                               {"on_end", Value("mail ann")}})));
  CHECK(old.targets ==
        std::vector<NotifyTarget>{{true, "mail ann", "", true}, {true, "mail bob", ""}});
}

TEST_CASE("an end with another status notifies no target") {
  CHECK(notification_of_end("r", "succeeded", 1, settings()).is_done());
  NotifySettings all = settings();
  all.statuses.clear();
  CHECK(notification_of_end("r", "succeeded", 1, all).to.targets.size() == 3);
}

TEST_CASE("a row in another form is empty") {
  for (const char* row : {"", "{", "\x01", "\xa1\x61\x78\x01"}) {
    CHECK(decode_notify_settings(row) == NotifySettings());
    CHECK(decode_notification(row).is_done());
  }
}
