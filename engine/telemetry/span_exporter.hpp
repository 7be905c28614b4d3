// Sends spans to a collector by OTLP over HTTP, on a thread of its own. It never blocks the engine:
// spans that the collector does not take in time are dropped and counted.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/environment_variables.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/telemetry/span.hpp"

namespace flow {

/// Where spans go, as the OTEL_ variables of OpenTelemetry's specification say.
struct SpanTarget {
  bool is_on = false;
  Url url;
  std::string shown;  // the URL without its secrets
  std::vector<std::pair<std::string, std::string>> headers;
  SpanAttributes resource;
  std::string ca_file;  // "": the system's
};
/// The error says which variable is wrong.
Result<SpanTarget> span_target(const EnvironmentVariables& environment);
/// The variables of this process that span_target() reads.
EnvironmentVariables trace_variables();

/// How long the collector may take.
struct SpanLimits {
  std::chrono::milliseconds exchange{10'000};  // for a whole answer
  // At the end of the process:
  std::chrono::milliseconds silence{1'000};  // for the next answer
  std::chrono::milliseconds flush{2'000};    // for all that waits
};

/// Thread-safe.
class SpanExporter {
 public:
  /// Called once, on the exporter's thread, with why spans are dropped.
  using OnDrop = std::function<void(const std::string& why)>;
  explicit SpanExporter(SpanTarget target, SpanLimits limits = {});
  /// Sends what waits, within the limits, and drops the rest.
  ~SpanExporter();

  void add(std::vector<Span> spans);
  uint64_t exported() const { return exported_; }
  uint64_t dropped() const { return dropped_; }
  /// Null: no callback is called any more. Waits for one that runs.
  void set_on_drop(OnDrop on_drop);

  static constexpr size_t kWaitingMax = 32'768;  // spans; more are dropped
  static constexpr size_t kBatchMax = 512;       // spans per request

 private:
  using Clock = std::chrono::steady_clock;
  void work();
  /// Sends a batch, again while the collector is not there, up to kTries.
  void send(const std::vector<Span>& batch);
  void count_exported(size_t count);
  void drop(size_t count, const std::string& why);
  bool is_over() const;
  /// Returns false once the exporter is stopping.
  bool pause(std::chrono::milliseconds time);

  const SpanTarget target_;
  const SpanLimits limits_;
  std::atomic<uint64_t> exported_ = 0, dropped_ = 0;
  std::atomic<bool> has_overflowed_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Span> waiting_;
  bool is_stopping_ = false;
  // If it is stopping: the end of the flush, and when it ends without a further answer.
  Clock::time_point flush_end_, answer_by_;
  std::mutex drop_mutex_;
  OnDrop on_drop_;
  std::string first_drop_;  // why the first spans were dropped; "": none was
  std::thread thread_;
};

}  // namespace flow
