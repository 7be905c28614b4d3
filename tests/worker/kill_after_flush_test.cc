// Attempts that are killed after their pending checkpoints are written.
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/worker/temp_folder.hpp"

using namespace flow;
using test::lua_order;
using test::TempFolder;

namespace {

constexpr int64_t kHour = 3'600'000;

/// The reports of one attempt.
class ReportLog {
 public:
  void take(const std::vector<Report>& reports) {
    std::lock_guard lock(mutex_);
    for (const Report& report : reports) {
      if (report.is<LogLines>()) has_begun_ = true;
      if (report.is<CheckpointReported>() || report.is<StepReported>()) saves_++;
      if (const auto* end = report.as<TaskFinished>()) end_ = end->outcome;
    }
    changed_.notify_all();
  }
  void wait_begun() {
    wait([this] { return has_begun_; });
  }
  void wait_saves(int count) {
    wait([this, count] { return saves_ == count; });
  }
  TaskFinished::Outcome wait_end() {
    wait([this] { return end_.has_value(); });
    return *end_;
  }
  bool has_ended() {
    std::lock_guard lock(mutex_);
    return end_.has_value();
  }

 private:
  template <typename Is>
  void wait(Is is) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), is));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_begun_ = false;
  int saves_ = 0;
  std::optional<TaskFinished::Outcome> end_;
};

std::unique_ptr<Worker> worker_in(const TempFolder& temp, ReportLog& log) {
  return test::worker_in(temp, [&](const std::vector<Report>& reports) { log.take(reports); });
}

/// Saves a checkpoint, and another one when the file `gate` exists, reports it, and runs forever.
AttemptOrder order_of(int64_t grace_ms, const std::string& gate) {
  AttemptOrder order = lua_order(0, R"(local flow = require "flow"
local task = flow.task("t", function(ctx, gate)
  ctx:checkpoint { step = 1 }
  while not io.open(gate) do end
  ctx:checkpoint { step = 2 }
  ctx:log("begun")
  while true do end
end)
return flow.pipeline("p", {}, function() return task("") end)
)",
                                 {gate});
  order.grace_ms = grace_ms;
  return order;
}

/// Reports that it began, and runs forever.
AttemptOrder idle_order() {
  AttemptOrder order = lua_order(0, R"(local flow = require "flow"
local task = flow.task("t", function(ctx)
  ctx:log("begun")
  while true do end
end)
return flow.pipeline("p", {}, function() return task() end)
)",
                                 {});
  order.grace_ms = kHour;
  return order;
}

/// How an attempt ends that is killed after its flush.
TaskFinished::Outcome end_of_settled(AttemptOrder order) {
  TempFolder temp;
  ReportLog log;
  auto worker = worker_in(temp, log);
  core::AttemptId id = order.id;
  worker->start({std::move(order)});
  log.wait_begun();
  worker->kill_after_flush(id);
  return log.wait_end();
}

}  // namespace

TEST_CASE(
    "an attempt that is killed after its flush ends when its pending checkpoints are written") {
  TempFolder temp;
  ReportLog log;
  auto worker = worker_in(temp, log);
  AttemptOrder order = order_of(kHour, temp / "gate");
  core::AttemptId id = order.id;
  worker->start({std::move(order)});
  log.wait_saves(1);
  std::ofstream(temp / "gate").flush();
  log.wait_begun();
  worker->kill_after_flush(id);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(200));  // for an attempt that would end too early
  CHECK_FALSE(log.has_ended());
  worker->ack_saved(id, "", true);
  log.wait_saves(2);  // the one that waited
  CHECK_FALSE(log.has_ended());
  worker->ack_saved(id, "", true);
  CHECK(log.wait_end() == TaskFinished::Outcome::stopped);
}

TEST_CASE("an attempt without pending checkpoints ends at once") {
  CHECK(end_of_settled(idle_order()) == TaskFinished::Outcome::stopped);
}

TEST_CASE("a command ends at once") {
  AttemptOrder order =
      test::shell_order(0, "trap '' TERM; echo begun; while true; do sleep 1; done");
  order.grace_ms = kHour;
  CHECK(end_of_settled(std::move(order)) == TaskFinished::Outcome::stopped);
}

TEST_CASE("a checkpoint that is not written within the grace period is not awaited") {
  TempFolder temp;
  ReportLog log;
  auto worker = worker_in(temp, log);
  AttemptOrder order = order_of(100, temp / "gate");
  core::AttemptId id = order.id;
  worker->start({std::move(order)});
  log.wait_saves(1);
  worker->kill_after_flush(id);
  CHECK(log.wait_end() == TaskFinished::Outcome::stopped);
}
