// A service named `adder` with a fake predict function, and requests to it.
#pragma once
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "client.hpp"
#include "engine/serve/model_server.hpp"

namespace flow {

/// A service whose predict function adds one to every number; "boom" in the inputs makes it fail,
/// and inputs named "endless" return infinities.
class Service {
 public:
  explicit Service(uint32_t batch_max = 1, int64_t batch_wait_us = 0,
                   const ServiceLimits& limits = {}) {
    ServiceOptions options;
    options.name = "adder";
    options.batch_max = batch_max;
    options.batch_wait_us = batch_wait_us;
    options.limits = limits;
    options.log = [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      logged_.push_back(line);
    };
    auto opened = ModelServer::open(options);
    REQUIRE(opened.ok());
    front_ = std::move(*opened);
    port = port_of(front_->url());
    thread_ = std::thread([this] {
      front_->run([this](const Tensors& inputs) { return predict(inputs); },
                  [this] { return stop_.load(); });
    });
    while (request(port, "GET", "/v2/health/ready").status != 200) std::this_thread::yield();
  }
  ~Service() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  std::vector<std::string> logged() {
    std::lock_guard lock(mutex_);
    return logged_;
  }

  int port = 0;
  std::atomic<int> calls{0};
  std::atomic<int64_t> rows_max{0};
  std::atomic<bool> hold{false};

 private:
  Result<Tensors> predict(const Tensors& inputs) {
    calls++;
    while (hold) std::this_thread::yield();
    Tensors outputs;
    for (const auto& [name, tensor] : inputs) {
      if (name == "boom") return Error{ErrorKind::task, "boom: predict failed"};
      if (name == "throw") throw std::runtime_error("thrown");
      rows_max = std::max(rows_max.load(), tensor.shape.front());
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

  std::unique_ptr<ModelServer> front_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<std::string> logged_;
};

inline std::string infer_body(const std::string& name, int value) {
  return R"({"inputs":[{"name":")" + name + R"(","shape":[1,1],"datatype":"FP32","data":[)" +
         std::to_string(value) + "]}]}";
}

inline double first_number(const Reply& reply) {
  auto value = from_json(reply.body);
  REQUIRE(value.ok());
  return value->find("outputs")->as_table().list[0].find("data")->as_table().list[0].as_number();
}

const char* const kInfer = "/v2/models/adder/infer";

}  // namespace flow
