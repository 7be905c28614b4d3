// A head and a worker whose messages are delivered at once, and orders and reports to send.
#pragma once
#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/ids.hpp"
#include "engine/cluster/worker/worker_agent.hpp"
#include "engine/head/remote_worker.hpp"

namespace flow::cluster {

/// Records its calls and reports what a test requests.
struct RecordedCalls {
  std::vector<AttemptOrder> orders;
  std::vector<uint64_t> commits, releases;
  std::vector<std::string> calls;
  Worker::OnReport say;
};

class Recorder final : public Worker {
 public:
  Recorder(RecordedCalls& told, OnReport on_report) : told_(told) {
    told_.say = std::move(on_report);
  }
  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override {
    for (AttemptOrder& order : orders) {
      told_.orders.push_back(std::move(order));
      told_.commits.push_back(commit);
    }
  }
  void release(uint64_t commit) override { told_.releases.push_back(commit); }
  void exchange_addresses(const core::AttemptId& id,
                          const std::vector<std::string>& rank_addresses) override {
    told_.calls.push_back("meet " + id.run + " " + std::to_string(rank_addresses.size()));
  }
  void stop(const core::AttemptId& id, bool kill) override {
    told_.calls.push_back((kill ? "kill " : "stop ") + id.run);
  }
  void interrupt(const core::AttemptId& id) override {
    told_.calls.push_back("interrupt " + id.run);
  }
  void kill_after_flush(const core::AttemptId& id) override {
    told_.calls.push_back("settle " + id.run);
  }
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override {
    told_.calls.push_back("saved " + id.run + " " + name + (ok ? " yes" : " no"));
  }
  void drain(int64_t grace_ms) override {
    told_.calls.push_back("drain " + std::to_string(grace_ms));
  }
  void ack_logs(size_t cost) override { told_.calls.push_back("took " + std::to_string(cost)); }

 private:
  RecordedCalls& told_;
};

/// These tests transfer no blobs.
class NoLink final : public Link {
 public:
  void send(std::string) override {}
  size_t unsent_bytes() const override { return 0; }
  void post_receive(uint64_t, Region, std::function<void(Result<size_t>)>) override {}
  void cancel_receive(uint64_t) override {}
  void put(uint64_t, Region, std::function<void(Status)>) override {}
  void close(int64_t) override {}
  std::string description() const override { return "nowhere"; }
};

/// A head and a worker that deliver messages immediately while there is a session.
struct Wire {
  JoinRequest joined;
  std::vector<Report> reports;
  std::vector<uint64_t> numbers;
  std::vector<std::string> pieces;  // sent to the worker
  std::vector<BlobInventoryDelta> news;
  std::string disconnect_reason, draining;
  RecordedCalls told;
  std::mutex mutex;
  std::condition_variable came;
  std::vector<blob_protocol::Message> asked;  // blob messages, from threads of the agent
  std::atomic<bool> took_all = true;          // set by the agent's threads when they send
  bool is_admitted = true, encrypt = false;
  std::shared_ptr<std::atomic<bool>> encrypts = std::make_shared<std::atomic<bool>>(false);
  std::string folder = "/tmp/flow-nodes-" + random_name();
  std::shared_ptr<BlobCache> store;
  std::unique_ptr<RemoteWorker> head;
  std::unique_ptr<WorkerAgent> agent;

  explicit Wire(const core::WorkerInfo& host) {
    start(host);
    connect();
    head->accept_join(0);
  }
  ~Wire() {
    agent.reset();
    std::filesystem::remove_all(folder);
  }
  void start(const core::WorkerInfo& host) {
    WorkerAgent::Options options;
    options.spool_dir = folder + "/spool";
    auto opened = BlobCache::open(folder, 0);
    REQUIRE(opened.ok());
    options.store = store = *opened;
    options.blob_address = [] { return "10.0.0.7:7"; };
    options.worker = host;
    options.encrypts = encrypts;
    auto made = WorkerAgent::start(
        std::move(options), [this](Worker::OnReport on_report) -> Result<std::unique_ptr<Worker>> {
          return std::unique_ptr<Worker>(new Recorder(told, std::move(on_report)));
        });
    REQUIRE(made.ok());
    agent = std::move(*made);
  }
  void connect() {
    RemoteWorkerCallbacks heard;
    heard.on_join = [this](JoinRequest request) {
      joined = std::move(request);
      return is_admitted;
    };
    heard.on_report = [this](Report report, uint64_t number) {
      reports.push_back(std::move(report));
      numbers.push_back(number);
    };
    heard.on_draining = [this](const std::string& why) { draining = why; };
    heard.on_order = [](const AttemptOrder&) {};
    heard.on_inventory_delta = [this](const BlobInventoryDelta& each) { news.push_back(each); };
    heard.on_blob_message = [this](std::string_view bytes) {
      std::lock_guard lock(mutex);
      blob_protocol::Message& message = asked.emplace_back();
      came.notify_all();
      return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
    };
    head = std::make_unique<RemoteWorker>(
        [this](std::string_view piece) { to_worker(piece); }, std::move(heard),
        [this](const std::string& why) { disconnect_reason = why; },
        RemoteWorkerOptions{.encrypt = encrypt});
    agent->connect(
        [this](std::string_view piece) {
          if (!head->on_message(piece)) took_all = false;
        },
        std::make_shared<NoLink>(), BulkSeal(Key{}, Key{}), "the head");
  }
  blob_protocol::Message asks(size_t number) {
    std::unique_lock lock(mutex);
    bool has_asked =
        came.wait_for(lock, std::chrono::seconds(60), [&] { return asked.size() > number; });
    REQUIRE(has_asked);
    return asked[number];
  }
  void disconnect() {
    agent->disconnect(environment_error("cut"));
    reports.clear();
    numbers.clear();
  }
  void to_worker(std::string_view piece) {
    pieces.emplace_back(piece);
    if (!agent->on_message(piece)) took_all = false;
  }
};

inline core::WorkerInfo big_host() {
  core::WorkerInfo host{"w1", 64'000, int64_t{1} << 40, {}, {{"rack", "a"}, {"zone", "\xff"}}};
  host.gpus.push_back({0, "GPU-a", "NVIDIA H200", "0000:1b:00.0", int64_t{140} << 30, 1, false});
  host.gpus.push_back({1, "MIG-b", "NVIDIA A100 MIG 1g.5gb", "", 5000, -1, true});
  host.custom_resources = {{"fpga", 2000}, {"licence", 500}};
  return host;
}

inline AttemptOrder full_order() {
  AttemptOrder order;
  order.id = {"run-1", 7, 2, 3 << 16};
  order.task = "train#2[1]";
  order.task_name = "train";
  order.kind = TaskKind::shell;
  order.bundle_bytes = std::make_shared<const std::string>("the bundle");
  order.bundle = sha256(*order.bundle_bytes);
  order.ordinal = 4;
  order.args = encode_value(Value::list({"args", std::string("\0\xff", 2)}));
  order.blobs = {{sha256("small"), "small"}};
  order.key = sha256("key");
  order.seed = UINT64_MAX - 1;
  order.resources.cpus_milli = 2500;
  order.resources.memory_bytes = int64_t{3} << 33;
  order.resources.gpus_milli = 2000;
  order.gpus = {"GPU-a", "GPU-b"};
  order.timeout_ms = 12345;
  order.grace_ms = 77;
  order.steps = {{"a", "1"}, {"b\xff", "2"}};
  order.signals = {{"go", "true"}};
  order.has_checkpoint = true;
  order.checkpoint = "state";
  order.waits = {{"wait#2", 99, true}};
  order.environment = std::make_shared<const std::vector<std::pair<std::string, std::string>>>(
      std::vector<std::pair<std::string, std::string>>{{"HOME", "/root"}, {"X", "\xff"}});
  order.env = {{"TOKEN", "secret"}};
  order.hide = {"secret"};
  auto shell = std::make_shared<ShellSpec>();
  shell->command = "wc {text}";
  shell->args = {"text"};
  shell->outputs = {{"out", "*.txt"}};
  shell->shell = {"bash", "-c"};
  order.shell = shell;
  order.defined_at = "p.lua:3";
  order.stage_copy = order.named_args = true;
  order.service = {8080, 32, 5000};
  order.request_timeout_ms = 900;
  return order;
}

inline TaskFinished died() {
  TaskFinished finished;
  finished.outcome = TaskFinished::Outcome::failed;
  finished.value = "value";
  finished.blobs = {{sha256("blob"), "blob"}, {sha256("other"), "another"}};
  finished.failure = {core::Cause::signal, "it died\xff", "evidence", 9};
  finished.fragment = "fragment";
  finished.waited = true;
  finished.duration_us = 1234;
  finished.pid = 42;
  return finished;
}

inline Report finished() { return {{"run-1", 7, 2, 3 << 16}, 0, 0, died()}; }

template <typename Body>
const Body& body_of(const Report& report) {
  REQUIRE(report.is<Body>());
  return *report.as<Body>();
}

inline const TaskFinished& end_of(const Report& report) { return body_of<TaskFinished>(report); }

inline Report ended(uint32_t unit) {
  Report report = finished();
  report.id.unit = unit;
  return report;
}

inline AttemptOrder order_of(uint32_t unit) {
  AttemptOrder order = full_order();
  order.id.unit = unit;
  return order;
}

}  // namespace flow::cluster
