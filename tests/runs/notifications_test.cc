// The rows of the notifications of a run's end.
#include "engine/runs/notifications.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

NotifySettings settings() {
  return {{{true, "mail ann", ""}, {false, "https://x/y", ""}, {false, "", "HOOK"}},
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
