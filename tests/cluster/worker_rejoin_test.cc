// A worker whose connection breaks, whose head changes or whose process restarts.
#include "tests/cluster/worker_wire.hpp"

namespace flow::cluster {
namespace {

using Offers = std::vector<RankOffer>;

/// Of a gang of three ranks.
AttemptOrder rank_order(uint32_t unit, uint32_t rank) {
  AttemptOrder order = order_of(unit);
  order.ranks = 3;
  order.rank = rank;
  order.gang_key = "key";
  return order;
}

/// The success of a rank.
Report rank_end(uint32_t unit, uint32_t rank) {
  Report report = ended(unit);
  report.rank = rank;
  report.body = TaskFinished{};
  return report;
}

TEST_CASE("events without a head are reported to the next head, once") {
  Wire wire(big_host());
  wire.head->stage({order_of(1), order_of(2), order_of(3)}, 5);
  wire.head->release(5);
  wire.told.say({ended(1)});
  CHECK(wire.numbers == std::vector<uint64_t>{1});
  wire.head->ack_reports(1);
  wire.disconnect();
  CHECK(wire.agent->was_accepted());
  CHECK(wire.agent->attempts() == 2);

  wire.told.say({{ended(2).id, 0, 0, LogLines{0, "alone"}}, ended(2)});
  CHECK(wire.reports.empty());

  wire.connect();
  CHECK(wire.joined.ranks == Offers{{{ended(2).id, 0}, true}, {{ended(3).id, 0}, false}});
  CHECK(wire.reports.empty());  // before the join is accepted
  CHECK_FALSE(wire.agent->was_accepted());
  wire.head->accept_join(1);
  CHECK(wire.numbers == std::vector<uint64_t>{2, 3});
  CHECK(body_of<LogLines>(wire.reports[0]).text == "alone");
  // The connection breaks before the acknowledgement arrives: the head already has them.
  wire.disconnect();
  wire.connect();
  CHECK(wire.joined.ranks.size() == 2);
  wire.head->accept_join(3);
  CHECK(wire.reports.empty());
  CHECK(wire.agent->attempts() == 1);
  wire.told.say({ended(3)});
  CHECK(wire.numbers == std::vector<uint64_t>{4});
  wire.head->ack_reports(4);
  CHECK(wire.agent->attempts() == 0);
}

TEST_CASE(
    "orders that were not released when the head died begin when the next head accepts the join") {
  Wire wire(big_host());
  wire.head->stage({order_of(1)}, 7);
  wire.disconnect();
  wire.told.releases.clear();
  wire.connect();
  // The next head numbers its commits from 1: no commit releases unknown orders.
  wire.head->stage({order_of(2)}, 1);
  wire.head->release(1);
  CHECK(wire.told.commits == std::vector<uint64_t>{7, 8});
  CHECK(wire.told.releases.empty());
  wire.head->stop(order_of(1).id, true);
  wire.head->accept_join(0);
  CHECK(wire.told.calls == std::vector<std::string>{"kill run-1"});
  CHECK(wire.told.releases == std::vector<uint64_t>{7, 8});
}

TEST_CASE("the answer to a save that was lost with a session is found in the next one") {
  Wire wire(big_host());
  AttemptOrder order = full_order();
  wire.head->stage({order}, 0);
  for (const char* name : {"answered", "committed", "not committed"})
    wire.told.say({{order.id, 0, 0, StepReported{name, "bytes", {}}}});
  wire.head->ack_saved(order.id, "answered", true);
  wire.disconnect();
  wire.told.calls.clear();

  wire.connect();
  wire.head->accept_join(2);
  CHECK(wire.told.calls == std::vector<std::string>{"saved run-1 committed yes"});
  CHECK(wire.numbers == std::vector<uint64_t>{3});
  wire.head->ack_saved(order.id, "not committed", true);
  wire.disconnect();
  wire.connect();
  wire.head->accept_join(3);
  CHECK(wire.told.calls ==
        std::vector<std::string>{"saved run-1 committed yes", "saved run-1 not committed yes"});
  CHECK(wire.took_all);
}

TEST_CASE("a restarted worker process reports attempts that had finished") {
  Wire wire(big_host());
  wire.disconnect();
  wire.head->stage({}, 0);
  wire.connect();
  wire.head->accept_join(0);
  wire.head->stage({order_of(1), order_of(2)}, 1);
  wire.told.say({ended(1)});
  wire.disconnect();
  std::string process = wire.joined.process, spool = wire.joined.spool;
  wire.agent.reset();

  wire.start(big_host());
  wire.connect();
  CHECK(wire.joined.process != process);
  CHECK(wire.joined.spool == spool);
  CHECK(wire.joined.ranks == Offers{{{ended(1).id, 0}, true}});
  wire.head->accept_join(0);
  REQUIRE(wire.reports.size() == 1);
  CHECK(wire.reports[0].id == ended(1).id);
}

TEST_CASE("a worker offers the ranks of a gang whose orders it got") {
  Wire wire(big_host());
  wire.head->stage({rank_order(1, 0), rank_order(1, 1)}, 1);
  CHECK(wire.took_all);
  wire.disconnect();  // before the order of rank 2
  wire.connect();
  CHECK(wire.joined.ranks == Offers{{{ended(1).id, 0}, false}, {{ended(1).id, 1}, false}});
  // The head has found that a rank is missing.
  wire.head->kill_after_flush(ended(1).id);
  wire.head->accept_join(0);
  CHECK(wire.told.calls == std::vector<std::string>{"settle run-1"});
}

TEST_CASE("a restarted worker process offers the ranks whose ends it has still to report") {
  Wire wire(big_host());
  wire.head->stage({rank_order(1, 0), rank_order(1, 1), order_of(2)}, 1);
  wire.told.say({rank_end(1, 1), ended(2)});
  wire.disconnect();
  wire.agent.reset();

  wire.start(big_host());
  wire.connect();
  CHECK(wire.joined.ranks == Offers{{{ended(1).id, 1}, true}, {{ended(2).id, 0}, true}});
  wire.head->accept_join(0);
  CHECK(wire.reports.size() == 2);
}

TEST_CASE("an acknowledged end of a rank above 0 is offered until its run has ended") {
  Wire wire(big_host());
  wire.head->stage({rank_order(1, 0), rank_order(1, 1), rank_order(2, 1)}, 1);
  wire.told.say({rank_end(2, 1), rank_end(1, 1)});
  wire.head->ack_reports(2);
  CHECK(wire.agent->attempts() == 1);
  Offers ends{{{ended(2).id, 1}, true}, {{ended(1).id, 1}, true}};
  Offers all = ends;
  all.insert(all.begin(), {{ended(1).id, 0}, false});
  wire.disconnect();
  wire.connect();
  CHECK(wire.joined.ranks == all);
  wire.head->accept_join(2);
  wire.told.say({rank_end(1, 0)});
  wire.head->ack_reports(3);
  wire.disconnect();
  wire.connect();
  CHECK(wire.joined.ranks == ends);  // rank 0's end was that of the attempt
  wire.head->accept_join(3);
  wire.head->forget("run-1");
  wire.disconnect();
  wire.connect();
  CHECK(wire.joined.ranks.empty());
}

TEST_CASE("an acknowledged failure of a rank above 0 is not offered") {
  Wire wire(big_host());
  wire.head->stage({rank_order(1, 0), rank_order(1, 1)}, 1);
  Report failure = rank_end(1, 1);
  failure.as<TaskFinished>()->outcome = TaskFinished::Outcome::failed;
  wire.told.say({failure});
  wire.head->ack_reports(1);
  wire.disconnect();
  wire.connect();
  CHECK(wire.joined.ranks == Offers{{{ended(1).id, 0}, false}});
}

TEST_CASE("the number of acknowledged ends that a worker offers is bounded") {
  Wire wire(big_host());
  for (uint32_t unit = 0; unit < kAckedEndsMax + 3; unit++) {
    wire.head->stage({rank_order(unit, 1)}, 1);
    wire.told.say({rank_end(unit, 1)});
  }
  wire.head->ack_reports(kAckedEndsMax + 3);
  wire.disconnect();
  wire.connect();
  REQUIRE(wire.joined.ranks.size() == kAckedEndsMax);
  CHECK(wire.joined.ranks.front().rank.attempt.unit == 3);
}

}  // namespace
}  // namespace flow::cluster
