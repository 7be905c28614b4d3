// The front of a service named `adder` with replicas in this process, and requests to it.
#pragma once
#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "client.hpp"
#include "engine/front/front.hpp"
#include "engine/serve/batch.hpp"

namespace flow {

const char* const kInfer = "/v2/models/adder/infer";

/// Adds one to every number. Some names of inputs have effects: "boom", "throw" and "wrong" fail,
/// and "endless" returns infinities. The number 666 fails too.
inline Result<Tensors> add_one(const Tensors& inputs) {
  Tensors outputs;
  for (const auto& [name, tensor] : inputs) {
    if (name == "boom") return Error{ErrorKind::task, "boom: predict failed"};
    if (name == "wrong") return user_error("wrong is not an input");
    if (name == "throw") return Error{ErrorKind::task, "`predict` failed: thrown"};
    std::string bytes(*tensor.data);
    for (size_t at = 0; at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      value = name == "endless" ? std::numeric_limits<float>::infinity() : value + 1;
      if (value == 667) return Error{ErrorKind::task, "666 is not served"};
      std::memcpy(bytes.data() + at, &value, sizeof value);
    }
    Tensor out = tensor;
    out.data = std::make_shared<const std::string>(std::move(bytes));
    outputs.emplace(name, std::move(out));
  }
  return outputs;
}

/// The first number of the first tensor.
inline int first_value(const Tensors& tensors) {
  float value = 0;
  std::memcpy(&value, tensors.begin()->second.data->data(), sizeof value);
  return static_cast<int>(value);
}

/// A replica that answers its batches on the loop's thread, or keeps them while it is held.
class AdderReplica final : public FrontReplica {
 public:
  AdderReplica(EventLoop& loop, Front& front) : loop_(loop), front_(front) {}

  // ---- calls of the front

  void joined(const std::string& url) override {
    std::lock_guard lock(mutex_);
    url_ = url;
  }
  void start(uint64_t batch, const std::vector<const Tensors*>& parts,
             const std::vector<BatchedRequest>& requests) override {
    std::lock_guard lock(mutex_);
    requests_ = requests;
    Tensors inputs = join_rows(parts);
    calls_++;
    for (const auto& [name, tensor] : inputs)
      rows_max_ = std::max(rows_max_, tensor.shape.empty() ? 1 : tensor.shape.front());
    for (const Tensors* part : parts) order_.push_back(first_value(*part));
    waiting_ = {batch, std::move(inputs)};
    if (!is_held_) answer_soon();
    changed_.notify_all();
  }
  void release() override {
    std::lock_guard lock(mutex_);
    is_released_ = true;
    changed_.notify_all();
  }
  void log(const std::string& line) override {
    std::lock_guard lock(mutex_);
    logged_.push_back(line);
  }

  // ---- calls of the test

  void hold() {
    std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  void go_on() {
    std::lock_guard lock(mutex_);
    is_held_ = false;
    answer_soon();
  }
  void leave(int64_t grace_ms) {
    loop_.run([&] { front_.leave(*this, std::chrono::milliseconds(grace_ms)); });
  }
  /// Its batch is lost.
  void die() {
    loop_.run([&] { front_.remove(*this); });
    std::lock_guard lock(mutex_);
    waiting_.reset();
  }
  void wait_calls(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return calls_ >= count; });
  }
  void wait_released() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_released_; });
  }

  bool is_released() { return locked(is_released_); }
  int calls() { return locked(calls_); }
  int64_t rows_max() { return locked(rows_max_); }
  std::vector<std::string> logged() { return locked(logged_); }
  /// The first number of each request, in the order of their batches.
  std::vector<int> order() { return locked(order_); }
  std::string url() { return locked(url_); }
  /// Of the newest batch.
  std::vector<BatchedRequest> requests() { return locked(requests_); }

 private:
  template <typename T>
  T locked(const T& value) {
    std::lock_guard lock(mutex_);
    return value;
  }
  /// The mutex is held.
  void answer_soon() {
    loop_.post([this] {
      std::optional<std::pair<uint64_t, Tensors>> batch;
      {
        std::lock_guard lock(mutex_);
        batch.swap(waiting_);
      }
      if (batch) front_.finish(*this, batch->first, add_one(batch->second), {});
    });
  }

  EventLoop& loop_;
  Front& front_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::pair<uint64_t, Tensors>> waiting_;
  bool is_held_ = false, is_released_ = false;
  int calls_ = 0;
  int64_t rows_max_ = 0;
  std::vector<int> order_;
  std::vector<BatchedRequest> requests_;
  std::vector<std::string> logged_;
  std::string url_;
};

struct ServiceSetup {
  int replicas = 1;
  int64_t drain_ms = 10'000, lease_ms = 60'000, canary_wait_ms = 60'000;
  std::string port_file = {}, grpc_port_file = {}, traffic_file = {}, access_log = {};
  int64_t rejoin_ms = 60'000;
};

/// A front with replicas of version "r1".
class Service {
 public:
  explicit Service(ServiceOptions options = {}, ServiceSetup setup = {})
      : options_(std::move(options)), setup_(std::move(setup)) {
    if (options_.name.empty()) options_.name = "adder";
    // Idle connections do not delay the end, unless a test asks for it.
    if (options_.limits.silence_ms == HttpLimits{}.silence_ms) options_.limits.silence_ms = 0;
    auto started = Front::start(loop_, {.port_file = setup_.port_file,
                                        .grpc_port_file = setup_.grpc_port_file,
                                        .traffic_file = setup_.traffic_file,
                                        .canary_wait_ms = setup_.canary_wait_ms,
                                        .access_log = setup_.access_log,
                                        .rejoin_ms = setup_.rejoin_ms,
                                        .lease_ms = setup_.lease_ms,
                                        .log =
                                            [this](const std::string& line) {
                                              std::lock_guard lock(mutex_);
                                              logged_.push_back(line);
                                            },
                                        .ended = [this] { ended_.set_value(); }});
    REQUIRE(started.ok());
    front_ = std::move(*started);
    for (int i = 0; i < setup_.replicas; i++) add();
  }
  ~Service() {
    for (AdderReplica& each : replicas_) each.go_on();
    stop();
    loop_.stop();
  }

  /// Another replica of a version.
  AdderReplica& add(const std::string& version = "r1") { return add(version, options_); }
  AdderReplica& add(const std::string& version, const ServiceOptions& options) {
    AdderReplica& replica = replicas_.emplace_back(loop_, *front_);
    Status joined = join(replica, version, options);
    INFO((joined.ok() ? "" : joined.error().message));
    REQUIRE(joined.ok());
    port = port_of(replica.url());
    return replica;
  }
  Status join(AdderReplica& replica, const std::string& version, const ServiceOptions& options) {
    Status joined;
    loop_.run([&] {
      joined = front_->join(
          replica,
          {version, {"adder[" + std::to_string(replicas_.size() - 1) + "]", 4711, ""}, options});
    });
    return joined;
  }
  /// A replica that has not joined.
  AdderReplica& add_unjoined() { return replicas_.emplace_back(loop_, *front_); }
  AdderReplica& replica(size_t index = 0) {
    return *std::next(replicas_.begin(), static_cast<long>(index));
  }
  template <typename Call>
  void on_loop(const Call& call) {
    loop_.run([&] { call(*front_); });
  }

  // ---- of the first replica

  void hold() { replica().hold(); }
  void release() { replica().go_on(); }
  void wait_calls(int count) { replica().wait_calls(count); }
  int calls() { return replica().calls(); }
  int64_t rows_max() { return replica().rows_max(); }

  void wait_metric(const std::string& name, int value) {
    while (metric(name) != value) std::this_thread::yield();
  }
  void begin_stop() {
    if (std::exchange(is_stopping_, true)) return;
    for (AdderReplica& each : replicas_) each.leave(setup_.drain_ms);
    on_loop([&](Front& front) { front.begin_drain(std::chrono::milliseconds(setup_.drain_ms)); });
  }
  void stop() {
    begin_stop();
    wait_end();
  }
  void wait_end() { end_.wait(); }
  bool has_ended() { return end_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

  std::vector<std::string> logged() {
    std::lock_guard lock(mutex_);
    return logged_;
  }
  /// A sample of /metrics, named without prefix, model and version: `requests_total,code="200"`. 0
  /// if it is absent.
  int metric(const std::string& name, const std::string& version = "r1") const {
    size_t comma = name.find(',');
    std::string series = "\nflow_service_" + name.substr(0, comma) + "{model=\"" + options_.name +
                         "\",version=\"" + version + "\"" +
                         (comma == std::string::npos ? "" : name.substr(comma)) + "} ";
    std::string text = request(port, "GET", "/metrics").body;
    size_t at = text.find(series);
    return at == std::string::npos ? 0 : std::stoi(text.substr(at + series.size()));
  }
  std::string url() { return replica().url(); }

  int port = 0;

 private:
  ServiceOptions options_;
  const ServiceSetup setup_;
  std::mutex mutex_;
  std::vector<std::string> logged_;
  std::promise<void> ended_;
  std::future<void> end_ = ended_.get_future();
  bool is_stopping_ = false;
  EventLoop loop_{"flow-http", {}};
  std::list<AdderReplica> replicas_;
  std::unique_ptr<Front> front_;
};

inline ServiceOptions batched(uint32_t max, int64_t wait_us = 0) {
  ServiceOptions options;
  options.batch_max = max;
  options.batch_wait_us = wait_us;
  return options;
}

inline std::string infer_body(const std::string& name, int value) {
  return R"({"inputs":[{"name":")" + name + R"(","shape":[1,1],"datatype":"FP32","data":[)" +
         std::to_string(value) + "]}]}";
}

inline double first_number(const Reply& reply) {
  auto value = from_json(reply.body);
  REQUIRE(value.ok());
  return value->find("outputs")->as_table().list[0].find("data")->as_table().list[0].as_number();
}

}  // namespace flow
