// Orders that are handed over while their events are being committed wait for the release.
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "tests/worker/place.hpp"

using namespace flow;
using test::Place;
using test::shell_order;
namespace fs = std::filesystem;

namespace {

using Outcome = Report::Outcome;

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

std::unique_ptr<Worker> worker_in(const Place& place, Ends& ends) {
  return test::worker_in(place,
                         [&ends](const std::vector<Report>& reports) { ends.take(reports); });
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

AttemptOrder lua_order(core::UnitId unit, const std::string& script,
                       const std::vector<std::string>& args) {
  AttemptOrder order = shell_order(unit, "");
  order.kind = TaskKind::lua;
  order.shell = nullptr;
  order.args = encode_value(Value::list({args.begin(), args.end()}));
  Bundle bundle;
  bundle.main = "p.lua";
  bundle.files = {{bundle.main, script}};
  order.bundle = bundle.digest();
  order.bundle_bytes = std::make_shared<const std::string>(encode_bundle(bundle));
  return order;
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

TEST_CASE("a Lua task computes before its release, and touches nothing outside") {
  std::string touch =
      GENERATE(std::string("io.open(path, 'w'):close()"), std::string("flow.fs.write(path, '')"),
               std::string("os.execute('touch ' .. path)"),
               std::string("io.popen('touch ' .. path):close()"),
               std::string("flow.fs.write(ctx.dir .. '/a', '') os.rename(ctx.dir .. '/a', path)"),
               std::string("io.output(path) io.write('') io.close()"));
  INFO(touch);
  Place place;
  Ends ends;
  auto worker = worker_in(place, ends);
  std::string script = R"(local flow = require "flow"
local task = flow.task("t", function(ctx, path)
  if path then TOUCH end
  return 1
end)
return flow.pipeline("p", {}, function() return task() end)
)";
  script.replace(script.find("TOUCH"), 5, touch);
  worker->stage(
      {lua_order(0, script, {}), lua_order(1, script, {place / "mark"}), lua_order(2, script, {})},
      1);
  CHECK(ends.wait(0) == Outcome::succeeded);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for one that would run too early
  CHECK_FALSE(fs::exists(place / "mark"));
  CHECK_FALSE(fs::exists(place / "state/scratch/r"));
  worker->release(1);
  CHECK(ends.wait(1) == Outcome::succeeded);
  CHECK(fs::exists(place / "mark"));
  CHECK(ends.wait(2) == Outcome::succeeded);
  // What was not held was let go when it was sent.
  worker->start({lua_order(3, script, {place / "last"})});
  CHECK(ends.wait(3) == Outcome::succeeded);
  CHECK(fs::exists(place / "last"));
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
