// The queue in front of the turns, without threads and with turns that only record their inputs.
#include "engine/runtime/inbox.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

struct Turns {
  core::Time now = 0, next = INT64_MAX;
  std::vector<size_t> sizes;  // inputs of each turn
  std::vector<bool> outcomes;
  StopCause stop;
  Inbox inbox{{.turn =
                   [this](std::vector<TurnInput> inputs, bool with_timers) {
                     sizes.push_back(inputs.size());
                     if (with_timers) next = INT64_MAX;
                     for (TurnInput& input : inputs) input.outcome(true);
                   },
               .has_work = [] { return false; },
               .next_due = [this] { return next; },
               .now = [this] { return now; }},
              stop};
  std::vector<TurnInput> inputs(size_t count) {
    std::vector<TurnInput> made(count);
    for (TurnInput& input : made)
      input.outcome = [this](bool admitted) { outcomes.push_back(admitted); };
    return made;
  }
};

}  // namespace

TEST_CASE("a turn takes 64 inputs at most, and an empty inbox runs no turn") {
  Turns turns;
  CHECK_FALSE(turns.inbox.run_turn());
  turns.inbox.post(turns.inputs(70));
  CHECK(turns.inbox.run_turn());
  CHECK(turns.inbox.run_turn());
  CHECK_FALSE(turns.inbox.run_turn());
  CHECK(turns.sizes == std::vector<size_t>{64, 6});
  CHECK(turns.outcomes == std::vector<bool>(70, true));
}

TEST_CASE("a timer that is due runs a turn without inputs") {
  Turns turns;
  turns.next = 10;
  turns.now = 9;
  CHECK_FALSE(turns.inbox.run_turn());
  turns.now = 10;
  CHECK(turns.inbox.run_turn());
  CHECK(turns.sizes == std::vector<size_t>{0});
}

TEST_CASE("without the engine's thread reports wait for a turn") {
  Turns turns;
  turns.inbox.post_or_turn(turns.inputs(1));
  CHECK(turns.sizes.empty());
  CHECK(turns.inbox.run_turn());
  CHECK(turns.sizes == std::vector<size_t>{1});
}

TEST_CASE("inputs after the end are rejected, and so are the remaining ones") {
  bool has_stopped = GENERATE(false, true);
  Turns turns;
  turns.inbox.post(turns.inputs(1));
  if (has_stopped) turns.stop.set(user_error("the disk is gone"));
  if (!has_stopped) turns.inbox.quit();
  turns.inbox.post(turns.inputs(1));
  CHECK(turns.outcomes == std::vector<bool>{false});
  CHECK_FALSE(turns.inbox.run_turn());
  turns.inbox.run_turns();  // returns at once
  turns.inbox.reject_rest();
  CHECK(turns.outcomes == std::vector<bool>{false, false});
  CHECK(turns.sizes.empty());
}
