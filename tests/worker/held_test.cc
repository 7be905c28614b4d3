// Orders that are handed over while their events are being committed wait for the release.
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "engine/worker/worker.hpp"
#include "flow/value.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

using Outcome = Report::Outcome;

class Place {
 public:
  Place() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~Place() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = fs::temp_directory_path() / "flow-held-XXXXXX";
};

/// Waits for the ends of attempts, by unit.
class Ends {
 public:
  void take(const std::vector<Report>& reports) {
    std::lock_guard lock(mutex_);
    for (const Report& report : reports) {
      if (report.kind == Report::Kind::finished) ends_[report.id.unit] = report.outcome;
    }
    changed_.notify_all();
  }
  Outcome wait(core::UnitId unit) {
    std::unique_lock lock(mutex_);
    REQUIRE(
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ends_.contains(unit); }));
    return ends_[unit];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<core::UnitId, Outcome> ends_;
};

AttemptOrder shell_order(core::UnitId unit, const std::string& command) {
  AttemptOrder order;
  order.id = {"r", unit, 1, 1};
  order.task = order.task_name = "t" + std::to_string(unit);
  order.kind = TaskKind::shell;
  order.args = encode_value(Value::list({}));
  ShellSpec shell;
  shell.command = command;
  shell.shell = {"sh", "-c"};
  order.shell = std::make_shared<const ShellSpec>(std::move(shell));
  using Environment = std::vector<std::pair<std::string, std::string>>;
  order.environment = std::make_shared<const Environment>(Environment{{"PATH", getenv("PATH")}});
  return order;
}

std::unique_ptr<Worker> worker_in(const Place& place, Ends& ends) {
  WorkerOptions options;
  options.state_dir = place / "state";
  options.executor = getenv("FLOW_TEST_EXECUTOR");
  options.executors_max = 1;
  auto worker =
      make_worker(options, [&ends](const std::vector<Report>& reports) { ends.take(reports); });
  REQUIRE(worker.ok());
  return std::move(*worker);
}

/// Hands over an order that makes `mark`, and one more: that the second is taken back shows that
/// the executor has read both.
void hand_over(Worker& worker, Ends& ends, const std::string& mark) {
  std::vector<AttemptOrder> orders;
  orders.push_back(shell_order(0, "touch " + mark));
  orders.push_back(shell_order(1, "true"));
  AttemptOrder second = orders[1];
  worker.stage(std::move(orders), 1);
  worker.stop(second.id, false);
  REQUIRE(ends.wait(1) == Outcome::stopped);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // for one that would run too early
}

}  // namespace

TEST_CASE("an order that is held runs after the release and not before") {
  Place place;
  Ends ends;
  auto worker = worker_in(place, ends);
  hand_over(*worker, ends, place / "mark");
  CHECK_FALSE(fs::exists(place / "mark"));
  worker->release(1);
  CHECK(ends.wait(0) == Outcome::succeeded);
  CHECK(fs::exists(place / "mark"));
}

TEST_CASE("a release lets go of its commit's orders and of earlier ones, not of later ones") {
  Place place;
  Ends ends;
  auto worker = worker_in(place, ends);
  hand_over(*worker, ends, place / "mark");
  worker->stage({shell_order(2, "touch " + (place / "later"))}, 2);
  worker->stage({shell_order(3, "touch " + (place / "last"))}, 3);
  worker->release(1);
  CHECK(ends.wait(0) == Outcome::succeeded);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK_FALSE(fs::exists(place / "later"));
  worker->start({shell_order(4, "touch " + (place / "behind"))});
  worker->release(3);
  CHECK(ends.wait(2) == Outcome::succeeded);
  CHECK(ends.wait(3) == Outcome::succeeded);
  CHECK(ends.wait(4) == Outcome::succeeded);
}

TEST_CASE("an order that is never released never runs") {
  Place place;
  {
    Ends ends;
    auto worker = worker_in(place, ends);
    hand_over(*worker, ends, place / "mark");
  }
  CHECK_FALSE(fs::exists(place / "mark"));
}
