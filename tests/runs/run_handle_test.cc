#include "engine/runs/run_handle.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace flow;

TEST_CASE(
    "events that are not read in time are dropped, the oldest first, and the reader is notified") {
  constexpr int kEvents = 250'000;
  detail::RunHandle state;
  state.id = "r1";
  for (int i = 0; i < kEvents; i++) {
    Event event;
    event.type = "task";
    event.task = std::to_string(i);
    state.on_event(std::move(event));
  }
  state.on_end();
  auto first = state.next();
  REQUIRE(first.has_value());
  CHECK(first->type == "warning");
  int dropped = std::stoi(first->text);
  CHECK(dropped > 0);
  int next = dropped;
  while (auto event = state.next()) {
    if (event->task == std::to_string(next)) next++;
  }
  CHECK(next == kEvents);
}
