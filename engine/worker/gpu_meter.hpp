// Measures the GPUs that attempts hold. A child process asks the driver, because the driver's
// library may crash or hang.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/protocol/frames.hpp"
#include "engine/worker/gpu_accounts.hpp"
#include "engine/worker/spawn.hpp"

namespace flow {

/// Thread-safe. Its thread and its child exist from the first attempt with GPUs on. GPUs are
/// measured while attempts hold them: once per second, and when an attempt begins or ends.
class GpuMeter {
 public:
  static constexpr int64_t kEveryUs = 1'000'000;
  /// For a beginning or an end GPUs are not measured again before this time.
  static constexpr int64_t kAgainUs = 100'000;
  /// How long an end waits for the driver.
  static constexpr int64_t kAnswerUs = 2'000'000;

  /// `executor` is the program that asks the driver. `on_ready` is called on the meter's thread,
  /// without a lock, when take_ready() has something.
  GpuMeter(std::string executor, std::function<void()> on_ready);
  ~GpuMeter();
  GpuMeter(const GpuMeter&) = delete;
  GpuMeter& operator=(const GpuMeter&) = delete;

  /// `milli`: thousandths that the rank has of each GPU.
  void begin(const RankId& id, const std::vector<std::string>& uuids, int32_t milli);
  /// Returns false if the rank is not measured. Otherwise what it used follows by take_ready().
  bool end(const RankId& id);
  /// It has not begun after all.
  void drop(const RankId& id);
  /// Ranks that ended, in the order of their ends, with what their GPUs measured.
  std::vector<std::pair<RankId, core::AttemptUsage>> take_ready();

 private:
  struct EndedRank {
    RankId id;
    int64_t at_us = 0;
  };
  void wake() const;
  void loop();
  // With the lock:
  /// Moves ranks that need not wait any more. Returns whether there were some.
  bool settle(int64_t now_us);
  bool may_settle(const EndedRank& ended, int64_t now_us) const;
  bool is_unusable(int64_t now_us) const;
  /// When the GPUs are to be measured next; INT64_MAX: no attempt holds any.
  int64_t due_us() const;
  int timeout_ms(int64_t now_us) const;
  // On the thread:
  void ask(int64_t now_us);
  void listen(int timeout_ms);
  /// Returns false when the child has closed the connection.
  bool read_samples();
  void lose_child();

  const std::string executor_;
  const std::function<void()> on_ready_;
  int wake_ = -1;  // an eventfd

  std::mutex mutex_;  // of the following
  bool is_ending_ = false;
  GpuAccounts accounts_;
  std::deque<EndedRank> ended_;
  std::vector<std::pair<RankId, core::AttemptUsage>> ready_;
  bool is_wanted_ = false;          // a measurement, for a beginning or an end
  bool is_asked_ = false;           // and has not answered
  int64_t asked_us_ = -kEveryUs;    // when the child was last asked
  std::optional<int64_t> lost_us_;  // when the child ended or was given up
  std::thread thread_;

  // Of the thread:
  std::optional<ExecutorProcess> child_;
  FrameCutter cutter_;
  std::vector<std::string> asked_;  // the GPUs of the newest question
};

}  // namespace flow
