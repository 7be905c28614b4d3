// A model named `adder` without a front: it adds one to every f32, and returns other tensors as
// they are. Some names of inputs have effects: "boom" and "wrong" fail, and "drop" is not answered.
#pragma once
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/serve/api_keys.hpp"
#include "engine/serve/inference_backend.hpp"

namespace flow {

class FakeBackend final : public InferenceBackend {
 public:
  explicit FakeBackend(std::vector<std::string> keys = {})
      : needs_key_(!keys.empty()), keys_(std::move(keys)), thread_([this] { run(); }) {}
  ~FakeBackend() override {
    {
      std::lock_guard lock(mutex_);
      is_stopped_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  std::string model() const override { return "adder"; }
  bool permits(std::string_view authorization) const override {
    std::lock_guard lock(mutex_);
    return !needs_key_ || keys_.permit(authorization);
  }
  bool is_ready() const override {
    std::lock_guard lock(mutex_);
    return is_ready_;
  }
  std::string describe(Endpoint endpoint) const override {
    switch (endpoint) {
      case Endpoint::server:
        return R"({"name":"flow","version":"1","extensions":["statistics"]})";
      case Endpoint::model:
        return R"({"name":"adder","versions":["1"],"platform":"flow_lua","inputs":[{"name":"x",)"
               R"("datatype":"FP32","shape":[-1,2]}],"outputs":[]})";
      case Endpoint::model_configuration:
        return R"({"name":"adder","platform":"flow_lua","backend":"flow","max_batch_size":8,)"
               R"("input":[{"name":"x","data_type":"TYPE_FP32","dims":[2]}],"output":[],)"
               R"("dynamic_batching":{"max_queue_delay_microseconds":5}})";
      case Endpoint::model_statistics:
        return R"({"model_stats":[{"name":"adder","version":"1","last_inference":9,)"
               R"("inference_count":3,"execution_count":2,"inference_stats":{"success":)"
               R"({"count":1,"ns":1000},"fail":{"count":0,"ns":0},)"
               R"("compute_infer":{"count":2,"ns":500}}}]})";
      case Endpoint::repository_index:
        return std::string(R"([{"name":"adder","version":"1","state":")") +
               (is_ready() ? "READY" : "UNAVAILABLE") + R"(","reason":""}])";
      default:
        return "";
    }
  }
  void infer(InferRequest request, InferCallInfo call,
             std::unique_ptr<InferResponder> responder) override {
    std::lock_guard lock(mutex_);
    calls_.push_back({call.record, call.traceparent});
    requests_.push_back({std::move(request), call.deadline, std::move(responder)});
    arrived_++;
    changed_.notify_all();
  }
  void count_refused(RequestRecord record) override {
    std::lock_guard lock(mutex_);
    refused_.push_back(record.status);
  }
  void note(RequestRecord record) override {
    std::lock_guard lock(mutex_);
    noted_.push_back(std::move(record));
  }

  // ---- for the tests

  void set_ready(bool is_ready) {
    std::lock_guard lock(mutex_);
    is_ready_ = is_ready;
  }
  void set_keys(std::vector<std::string> keys) {
    std::lock_guard lock(mutex_);
    keys_ = ApiKeys(std::move(keys));
  }
  /// Requests wait from now on.
  void hold() {
    std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  void release() {
    std::lock_guard lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }
  /// Answers the newest request that waits.
  void answer_newest() {
    std::unique_lock lock(mutex_);
    Waiting newest = std::move(requests_.back());
    requests_.pop_back();
    lock.unlock();
    answer(newest);
  }
  /// Rejects all requests that wait.
  void fail_all(int status, const std::string& message) {
    std::deque<Waiting> failed;
    {
      std::lock_guard lock(mutex_);
      failed.swap(requests_);
    }
    for (Waiting& each : failed) each.responder->fail(status, message);
  }
  void wait_arrived(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  size_t arrived() {
    std::lock_guard lock(mutex_);
    return arrived_;
  }
  std::vector<int> refused() {
    std::lock_guard lock(mutex_);
    return refused_;
  }
  /// What was reported of each request for inference, and its trace.
  std::vector<std::pair<RequestRecord, std::string>> calls() {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  /// The other requests.
  std::vector<RequestRecord> noted() {
    std::lock_guard lock(mutex_);
    return noted_;
  }
  std::optional<Clock::time_point> first_deadline() {
    std::lock_guard lock(mutex_);
    return requests_.front().deadline;
  }
  void wait_first_abandoned() {
    while (true) {
      {
        std::lock_guard lock(mutex_);
        if (requests_.front().responder->is_abandoned()) return;
      }
      std::this_thread::yield();
    }
  }

 private:
  struct Waiting {
    InferRequest request;
    std::optional<Clock::time_point> deadline;
    std::unique_ptr<InferResponder> responder;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_stopped_ || (!is_held_ && !requests_.empty()); });
      if (is_stopped_) return;
      Waiting next = std::move(requests_.front());
      requests_.pop_front();
      lock.unlock();
      answer(next);
      next = {};
      lock.lock();
    }
  }

  void answer(Waiting& waiting) {
    Tensors outputs = waiting.request.inputs;
    for (auto& [name, tensor] : outputs) {
      if (name == "boom") return waiting.responder->fail(500, "boom: predict failed");
      if (name == "wrong") return waiting.responder->fail(400, "wrong is not an input");
      if (name == "drop") return waiting.responder.reset();
      if (tensor.dtype != DType::f32) continue;
      auto bytes = std::make_shared<std::string>(*tensor.data);
      for (size_t at = 0; at + sizeof(float) <= bytes->size(); at += sizeof(float)) {
        float value;
        std::memcpy(&value, bytes->data() + at, sizeof value);
        value += 1;
        std::memcpy(bytes->data() + at, &value, sizeof value);
      }
      tensor.data = std::move(bytes);
    }
    Status encoded = waiting.responder->encode("adder", waiting.request, outputs);
    if (encoded.ok()) return waiting.responder->send();
    waiting.responder->fail(encoded.error().kind == ErrorKind::user ? 400 : 500,
                            encoded.error().message);
  }

  const bool needs_key_;
  mutable std::mutex mutex_;
  ApiKeys keys_;
  std::condition_variable changed_;
  std::deque<Waiting> requests_;
  std::vector<int> refused_;
  std::vector<std::pair<RequestRecord, std::string>> calls_;
  std::vector<RequestRecord> noted_;
  size_t arrived_ = 0;
  bool is_ready_ = true, is_held_ = false, is_stopped_ = false;
  std::thread thread_;
};

}  // namespace flow
