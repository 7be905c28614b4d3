// A service named `adder` with a fake predict function, and requests to it.
#pragma once
#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "client.hpp"
#include "engine/serve/model_server.hpp"

namespace flow {

const char* const kInfer = "/v2/models/adder/infer";

/// A service whose predict function adds one to every number. Some names of inputs have effects:
/// "boom", "throw" and "wrong" fail, and "endless" returns infinities. The number 666 fails too.
class Service {
 public:
  explicit Service(ServiceOptions options = {}, bool runs = true) {
    options.name = "adder";
    // Idle connections do not delay the end, unless a test asks for it.
    if (options.limits.silence_ms == HttpLimits{}.silence_ms) options.limits.silence_ms = 0;
    options.log = [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      logged_.push_back(line);
    };
    auto opened = ModelServer::open(options);
    REQUIRE(opened.ok());
    server_ = std::move(*opened);
    port = port_of(server_->url());
    if (runs) run();
  }
  ~Service() {
    release();
    stop();
  }

  void run() {
    thread_ = std::thread([this] {
      server_->run([this](const Tensors& inputs) { return predict(inputs); },
                   [this] { return stop_.load(); });
    });
    while (request(port, "GET", "/v2/health/ready").status != 200) std::this_thread::yield();
  }
  /// Calls of predict wait from now on.
  void hold() {
    std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  void release() {
    std::lock_guard lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }
  void wait_calls(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return calls_ >= count; });
  }
  void wait_metric(const std::string& name, int value) {
    while (metric(name) != value) std::this_thread::yield();
  }
  void begin_stop() { stop_ = true; }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  int calls() {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  int64_t rows_max() {
    std::lock_guard lock(mutex_);
    return rows_max_;
  }
  std::vector<std::string> logged() {
    std::lock_guard lock(mutex_);
    return logged_;
  }
  /// A sample of /metrics, named without prefix and model: `requests_total,code="200"`. 0 if it is
  /// absent.
  int metric(const std::string& name) const {
    size_t comma = name.find(',');
    std::string series = "\nflow_service_" + name.substr(0, comma) + "{model=\"adder\"" +
                         (comma == std::string::npos ? "" : name.substr(comma)) + "} ";
    std::string text = request(port, "GET", "/metrics").body;
    size_t at = text.find(series);
    return at == std::string::npos ? 0 : std::stoi(text.substr(at + series.size()));
  }

  int port = 0;

 private:
  Result<Tensors> predict(const Tensors& inputs) {
    {
      std::unique_lock lock(mutex_);
      calls_++;
      for (const auto& [name, tensor] : inputs)
        rows_max_ = std::max(rows_max_, tensor.shape.empty() ? 1 : tensor.shape.front());
      changed_.notify_all();
      changed_.wait(lock, [this] { return !is_held_; });
    }
    Tensors outputs;
    for (const auto& [name, tensor] : inputs) {
      if (name == "boom") return Error{ErrorKind::task, "boom: predict failed"};
      if (name == "wrong") return user_error("wrong is not an input");
      if (name == "throw") throw std::runtime_error("thrown");
      std::string bytes(*tensor.data);
      for (size_t at = 0; at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
        float value;
        std::memcpy(&value, bytes.data() + at, sizeof value);
        value = name == "endless" ? std::numeric_limits<float>::infinity() : value + 1;
        if (value == 667) return Error{ErrorKind::task, "666 is not served"};
        std::memcpy(bytes.data() + at, &value, sizeof value);
      }
      Tensor out = tensor;
      out.digest = sha256(bytes);
      out.data = std::make_shared<const std::string>(std::move(bytes));
      outputs.emplace(name, std::move(out));
    }
    return outputs;
  }

  std::unique_ptr<ModelServer> server_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_held_ = false;
  int calls_ = 0;
  int64_t rows_max_ = 0;
  std::vector<std::string> logged_;
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
