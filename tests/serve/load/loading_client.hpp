// A client that sends requests one after the other, on a thread of its own, and what it has seen.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace flow::load {

inline int64_t now_us() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

struct Target {
  int port = 0, grpc_port = 0;
  std::string model;  // the path, for `events`
};

struct Sample {
  int64_t ended_us, took_us;
};

class LoadingClient {
 public:
  LoadingClient(std::string kind, Target target)
      : kind_(std::move(kind)), target_(std::move(target)) {}
  LoadingClient(const LoadingClient&) = delete;
  virtual ~LoadingClient() = default;

  void start() {
    thread_ = std::thread([this] { run(); });
  }
  /// It ends after the requests that it has sent.
  void stop() { is_stopped_ = true; }
  void join() { thread_.join(); }

  const std::string& kind() const { return kind_; }
  size_t answered() const { return answered_; }
  size_t refused() const { return refused_; }
  // After join():
  const std::vector<Sample>& samples() const { return samples_; }
  const std::vector<std::string>& failures() const { return failures_; }
  /// The factors by which the numbers of requests were multiplied.
  const std::set<double>& factors() const { return factors_; }
  size_t failed() const { return failed_; }

 protected:
  /// Uses one connection until it ends, or is_stopped().
  virtual void use_connection() = 0;

  bool is_stopped() const { return is_stopped_; }
  const Target& target() const { return target_; }
  int next_number() { return number_ = number_ % kNumberMax + 1; }
  void succeed(int64_t began_us, double factor) {
    int64_t now = now_us();
    samples_.push_back({now, now - began_us});
    factors_.insert(factor);
    answered_++;
  }
  void fail(const std::string& what) {
    if (failures_.size() < kFailuresMax) failures_.push_back(what);
    failed_++;
    pause();
  }
  /// A new connection was refused: no request was lost.
  void refuse() {
    refused_++;
    pause();
  }

 private:
  static constexpr int kNumberMax = 1000;
  static constexpr size_t kFailuresMax = 5;

  void run() {
    while (!is_stopped_) use_connection();
  }
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }

  const std::string kind_;
  const Target target_;
  std::thread thread_;
  std::atomic<bool> is_stopped_{false};
  std::atomic<size_t> answered_{0}, refused_{0};
  std::vector<Sample> samples_;
  std::vector<std::string> failures_;
  std::set<double> factors_;
  size_t failed_ = 0;
  int number_ = 0;
};

/// `call`: one ModelInfer after the other; `stream`: requests of a ModelStreamInfer. Null for any
/// other kind.
std::unique_ptr<LoadingClient> grpc_client(const std::string& kind, const Target& target);

}  // namespace flow::load
