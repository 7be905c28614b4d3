// A worker that leaves.
#include <chrono>
#include <thread>

#include "tests/cluster/worker_wire.hpp"

namespace flow::cluster {
namespace {

TEST_CASE("a draining worker announces it, requeues new orders and reports interrupted attempts") {
  Wire wire(big_host());
  wire.head->stage({order_of(1), order_of(2)}, 5);
  wire.head->release(5);
  wire.told.say({{order_of(1).id, 0, 0, CheckpointReported{}}});
  wire.agent->drain(700, "maintenance");
  CHECK(wire.draining == "maintenance");
  CHECK(wire.told.calls.back() == "drain 700");
  wire.head->stage({order_of(3)}, 6);
  CHECK(wire.told.orders.size() == 2);
  REQUIRE(wire.reports.size() == 2);
  CHECK(wire.reports[1].is<TaskRequeued>());
  CHECK(wire.reports[1].id == order_of(3).id);

  TaskFinished stopped;
  stopped.outcome = TaskFinished::Outcome::stopped;
  wire.told.say({{order_of(1).id, 0, 0, stopped}});
  CHECK(end_of(wire.reports.back()).outcome ==
        TaskFinished::Outcome::stopped);  // it resumes from its saved state
  wire.told.say({{order_of(2).id, 0, 0, stopped}});
  CHECK(end_of(wire.reports.back()).outcome == TaskFinished::Outcome::failed);
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::preempted);
  CHECK(end_of(wire.reports.back()).failure.message.find("maintenance") != std::string::npos);
  CHECK(wire.agent->attempts() == 3);  // until the head has the report

  // It is announced again to a head that connects while it drains.
  wire.draining.clear();
  wire.disconnect();
  wire.connect();
  CHECK(wire.draining == "maintenance");
  wire.head->accept_join(0);
  wire.head->ack_reports(wire.numbers.back());
  CHECK(wire.agent->attempts() == 0);
  CHECK(wire.took_all);
}

TEST_CASE("an attempt that dies from the signal that ends its worker has not failed by itself") {
  Wire wire(big_host());
  wire.head->stage({order_of(1), order_of(2), order_of(3), order_of(4)}, 5);
  wire.head->release(5);
  auto killed = [](uint32_t unit, core::Cause cause, int code) {
    TaskFinished killed = died();
    killed.failure = {cause, "killed", "", code};
    return Report{ended(unit).id, 0, 0, std::move(killed)};
  };
  // The worker receives the signal a moment later.
  std::thread teller([&] { wire.told.say({killed(1, core::Cause::signal, 15)}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  wire.agent->drain(700, "its time is over");
  teller.join();
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::preempted);
  wire.told.say({killed(2, core::Cause::exit_code, 143)});
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::preempted);
  wire.told.say({killed(3, core::Cause::exit_code, 1)});
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::exit_code);
  wire.told.say({killed(4, core::Cause::signal, 11)});
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::signal);

  Wire other(big_host());
  other.head->stage({order_of(1)}, 5);
  other.told.say({killed(1, core::Cause::signal, 15)});  // from another process
  CHECK(end_of(other.reports.back()).failure.cause == core::Cause::signal);
}

}  // namespace
}  // namespace flow::cluster
