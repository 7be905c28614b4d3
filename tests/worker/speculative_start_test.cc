// Orders that are sent while their events are being committed wait for the release.
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "tests/worker/temp_folder.hpp"

using namespace flow;
using test::lua_order;
using test::shell_order;
using test::TempFolder;
namespace fs = std::filesystem;

namespace {

using Outcome = TaskFinished::Outcome;

/// Waits for the ends of attempts, by unit.
class Ends {
 public:
  void take(const std::vector<Report>& reports) {
    std::lock_guard lock(mutex_);
    for (const Report& report : reports) {
      if (const auto* end = report.as<TaskFinished>()) ends_[report.id.unit] = end->outcome;
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

std::unique_ptr<Worker> worker_in(const TempFolder& temp, Ends& ends, int32_t executors = 1) {
  return test::worker_in(
      temp, [&ends](const std::vector<Report>& reports) { ends.take(reports); }, executors);
}

/// Submits an order that creates `mark`, and another one: when the second is requeued, the executor
/// has read both.
void hand_over(Worker& worker, Ends& ends, const std::string& mark) {
  std::vector<AttemptOrder> orders;
  orders.push_back(shell_order(0, "touch " + mark));
  orders.push_back(shell_order(1, "true"));
  AttemptOrder second = orders[1];
  worker.stage(std::move(orders), 1);
  worker.stop(second.id, false);
  REQUIRE(ends.wait(1) == Outcome::stopped);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(200));  // for an attempt that would run too early
}

}  // namespace

TEST_CASE("an order that waits runs after the release and not before") {
  TempFolder temp;
  Ends ends;
  auto worker = worker_in(temp, ends);
  hand_over(*worker, ends, temp / "mark");
  CHECK_FALSE(fs::exists(temp / "mark"));
  worker->release(1);
  CHECK(ends.wait(0) == Outcome::succeeded);
  CHECK(fs::exists(temp / "mark"));
}

TEST_CASE("a release covers the orders of its commit and of earlier ones, not of later ones") {
  TempFolder temp;
  Ends ends;
  auto worker = worker_in(temp, ends);
  hand_over(*worker, ends, temp / "mark");
  worker->stage({shell_order(2, "touch " + (temp / "later"))}, 2);
  worker->stage({shell_order(3, "touch " + (temp / "last"))}, 3);
  worker->release(1);
  CHECK(ends.wait(0) == Outcome::succeeded);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK_FALSE(fs::exists(temp / "later"));
  worker->start({shell_order(4, "touch " + (temp / "behind"))});
  worker->release(3);
  CHECK(ends.wait(2) == Outcome::succeeded);
  CHECK(ends.wait(3) == Outcome::succeeded);
  CHECK(ends.wait(4) == Outcome::succeeded);
}

TEST_CASE("a Lua task computes before its release and has no external effects") {
  std::string touch =
      GENERATE(std::string("io.open(path, 'w'):close()"), std::string("flow.fs.write(path, '')"),
               std::string("os.execute('touch ' .. path)"),
               std::string("io.popen('touch ' .. path):close()"),
               std::string("flow.fs.write(ctx.dir .. '/a', '') os.rename(ctx.dir .. '/a', path)"),
               std::string("io.output(path) io.write('') io.close()"));
  INFO(touch);
  TempFolder temp;
  Ends ends;
  auto worker = worker_in(temp, ends);
  std::string script = R"(local flow = require "flow"
local task = flow.task("t", function(ctx, path)
  if path then TOUCH end
  return 1
end)
return flow.pipeline("p", {}, function() return task() end)
)";
  script.replace(script.find("TOUCH"), 5, touch);
  worker->stage(
      {lua_order(0, script, {}), lua_order(1, script, {temp / "mark"}), lua_order(2, script, {})},
      1);
  CHECK(ends.wait(0) == Outcome::succeeded);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(100));  // for an attempt that would run too early
  CHECK_FALSE(fs::exists(temp / "mark"));
  CHECK_FALSE(fs::exists(temp / "state/scratch/r"));
  worker->release(1);
  CHECK(ends.wait(1) == Outcome::succeeded);
  CHECK(fs::exists(temp / "mark"));
  CHECK(ends.wait(2) == Outcome::succeeded);
  // What did not wait was released when it was sent.
  worker->start({lua_order(3, script, {temp / "last"})});
  CHECK(ends.wait(3) == Outcome::succeeded);
  CHECK(fs::exists(temp / "last"));
}

TEST_CASE(
    "the order of a later commit waits for its own release, even behind one of an earlier commit") {
  TempFolder temp;
  Ends ends;
  auto worker = worker_in(temp, ends, 2);
  std::string script = R"(local flow = require "flow"
local task = flow.task("t", function(ctx, us, path)
  local from = os.clock()
  while os.clock() - from < us / 1e6 do end
  if path then flow.fs.write(path, "") end
  return 1
end)
return flow.pipeline("p", {}, function() return task(1) end)
)";
  auto order = [&](core::UnitId unit, int64_t us, const std::string& path) {
    AttemptOrder made = lua_order(unit, script, {});
    std::vector<Value> args = {Value(us)};
    if (!path.empty()) args.emplace_back(path);
    made.args = encode_value(Value::list(std::move(args)));
    return made;
  };
  worker->start({order(100, 0, ""), order(101, 0, "")});  // the executors are warm
  REQUIRE(ends.wait(100) == Outcome::succeeded);
  REQUIRE(ends.wait(101) == Outcome::succeeded);
  // The orders behind the long one are requeued and sent again behind those of the later commit.
  std::vector<AttemptOrder> earlier;
  for (core::UnitId unit = 0; unit < 81; unit++)
    earlier.push_back(order(unit, unit == 0 ? 1'500'000 : unit < 40 ? 0 : 2'000, ""));
  worker->stage(std::move(earlier), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(8));
  worker->stage({order(90, 0, temp / "later")}, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  worker->release(1);
  CHECK(ends.wait(0) == Outcome::succeeded);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(100));  // for an attempt that would run too early
  CHECK_FALSE(fs::exists(temp / "later"));
  worker->release(2);
  CHECK(ends.wait(90) == Outcome::succeeded);
  CHECK(fs::exists(temp / "later"));
  for (core::UnitId unit = 1; unit < 81; unit++) CHECK(ends.wait(unit) == Outcome::succeeded);
}

TEST_CASE("waiting for the release does not count as an attempt's time") {
  TempFolder temp;
  std::mutex mutex;
  std::map<core::UnitId, int64_t> durations;
  Ends ends;
  auto worker = test::worker_in(temp, [&](const std::vector<Report>& reports) {
    {
      std::lock_guard lock(mutex);
      for (const Report& report : reports) {
        if (const auto* end = report.as<TaskFinished>())
          durations[report.id.unit] = end->duration_us;
      }
    }
    ends.take(reports);
  });
  AttemptOrder command = shell_order(0, "true");
  AttemptOrder lua = lua_order(1, R"(local flow = require "flow"
local task = flow.task("t", function(ctx, path) flow.fs.write(path, "") return 1 end)
return flow.pipeline("p", {}, function() return task("") end)
)",
                               {temp / "mark"});
  command.timeout_ms = lua.timeout_ms = 1'000;
  for (const AttemptOrder& each : {command, lua}) {
    worker->stage({each}, each.id.unit + 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1'500));
    worker->release(each.id.unit + 1);
    CHECK(ends.wait(each.id.unit) == Outcome::succeeded);
    std::lock_guard lock(mutex);
    CHECK(durations[each.id.unit] < 1'000'000);
  }
}

TEST_CASE("an order that is never released never runs") {
  TempFolder temp;
  {
    Ends ends;
    auto worker = worker_in(temp, ends);
    hand_over(*worker, ends, temp / "mark");
  }
  CHECK_FALSE(fs::exists(temp / "mark"));
}
