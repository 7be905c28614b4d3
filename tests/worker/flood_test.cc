// A program that prints faster than its output is received blocks, and can be stopped meanwhile.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/worker/temp_folder.hpp"

using namespace flow;
using test::shell_order;
using test::TempFolder;

namespace {

constexpr size_t kReadAtOnce = 1 << 20;  // more than one read of a worker

/// Records the reports of one attempt, and acknowledges logs only on request.
class ReportRecorder {
 public:
  void take(const std::vector<Report>& reports) {
    std::lock_guard lock(mutex_);
    for (const Report& report : reports) {
      if (const auto* lines = report.as<LogLines>()) {
        bytes_ += lines->text.size() + 1;
        unacked_ += lines->cost;
        unacked_peak_ = std::max(unacked_peak_, unacked_);
      }
      if (const auto* end = report.as<TaskFinished>()) end_ = end->outcome;
    }
    changed_.notify_all();
  }
  /// True if the attempt ended, false if the worker stopped reading.
  bool wait() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60),
                              [&] { return end_ || unacked_ > kUnackedLogsMax; }));
    return end_.has_value();
  }
  TaskFinished::Outcome wait_end() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return end_.has_value(); }));
    return *end_;
  }
  size_t take_all() {
    std::lock_guard lock(mutex_);
    return std::exchange(unacked_, 0);
  }
  size_t bytes() const { return bytes_; }
  size_t unacked_peak() const { return unacked_peak_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t bytes_ = 0, unacked_ = 0, unacked_peak_ = 0;
  std::optional<TaskFinished::Outcome> end_;
};

std::unique_ptr<Worker> worker_in(const TempFolder& temp, ReportRecorder& taker) {
  return test::worker_in(temp,
                         [&taker](const std::vector<Report>& reports) { taker.take(reports); });
}

}  // namespace

TEST_CASE("unacknowledged output is not read, and arrives when there is room") {
  TempFolder temp;
  ReportRecorder taker;
  auto worker = worker_in(temp, taker);
  worker->start({shell_order(0, "seq 1000000 9000000 | head -c 60000000")});
  int waits = 0;
  for (; !taker.wait(); waits++) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(200));  // for lines that would arrive too early
    worker->ack_logs(taker.take_all());
  }
  CHECK(taker.wait_end() == TaskFinished::Outcome::succeeded);
  CHECK(waits > 0);
  CHECK(taker.bytes() == 60000000);
  CHECK(taker.unacked_peak() <= kUnackedLogsMax + kReadAtOnce);
}

TEST_CASE("an attempt that blocks on output can be stopped and killed") {
  bool kill = GENERATE(false, true);
  INFO(kill);
  TempFolder temp;
  ReportRecorder taker;
  auto worker = worker_in(temp, taker);
  AttemptOrder order = shell_order(0, "yes it goes on");
  core::AttemptId id = order.id;
  worker->start({std::move(order)});
  REQUIRE_FALSE(taker.wait());
  worker->stop(id, kill);
  CHECK(taker.wait_end() == TaskFinished::Outcome::stopped);
}
