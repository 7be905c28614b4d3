// An engine on one thread: with a store in memory and a worker that only records its orders.
#pragma once
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/latch.hpp"
#include "engine/plan/plan.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/value/cbor.hpp"

namespace flow {

/// A chain of Lua tasks: `t0`, `t1`, …; the run's result is that of the last one.
inline std::shared_ptr<const Plan> chain_plan(size_t tasks) {
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "p";
  plan->defs.resize(1);
  plan->defs[0].name = "t";
  for (uint32_t i = 0; i < tasks; i++) {
    TaskNode node;
    node.name = "t" + std::to_string(i);
    node.args = Value::list({i == 0 ? Value(true) : Value(Ref{i - 1, {}})});
    plan->nodes.push_back(std::move(node));
  }
  plan->result = Value(Ref{static_cast<uint32_t>(tasks - 1), {}});
  return plan;
}

/// The commands to a worker.
struct WorkerLog {
  std::vector<AttemptOrder> orders;
  std::vector<std::string> calls;
};

class SilentWorker final : public Worker {
 public:
  explicit SilentWorker(WorkerLog& log) : log_(log) {}
  void stage(std::vector<AttemptOrder> orders, uint64_t) override {
    for (AttemptOrder& order : orders) log_.orders.push_back(std::move(order));
  }
  void release(uint64_t) override { log_.calls.push_back("release"); }
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId&, bool kill) override {
    log_.calls.push_back(kill ? "kill" : "stop");
  }
  void interrupt(const core::AttemptId&) override { log_.calls.push_back("interrupt"); }
  void ack_saved(const core::AttemptId&, const std::string& name, bool ok) override {
    log_.calls.push_back((ok ? "saved " : "not saved ") + name);
  }
  void ack_logs(size_t) override {}

 private:
  WorkerLog& log_;
};

class KeepingListener final : public RunListener {
 public:
  void on_events(std::vector<Event> all) override {
    for (const Event& event : all) texts.push_back(event.task + " " + event.status);
  }
  void on_end() override { texts.push_back("end"); }
  void fail(Error why) override { texts.push_back(why.message); }
  std::vector<std::string> texts;
};

/// Keeps the orders to fronts of services.
class RecordingFronts final : public FrontControl {
 public:
  explicit RecordingFronts(std::vector<FrontOrder>& orders) : orders_(orders) {}
  void give(FrontOrder order) override { orders_.push_back(std::move(order)); }

 private:
  std::vector<FrontOrder>& orders_;
};

/// Blocking calls run turns while they wait.
class OpenEngine {
 public:
  explicit OpenEngine(std::unique_ptr<Store> store = make_memory_store(),
                      bool leads_cluster = false) {
    EngineLoopOptions options;
    options.jobs = 2;
    options.leads_cluster = leads_cluster;
    options.clock = [this] { return now; };
    options.fronts = [this](ServiceFronts::Post) {
      return std::make_shared<RecordingFronts>(front_orders);
    };
    auto opened = EngineLoop::open(options, std::move(store));
    REQUIRE(opened.ok());
    loop = std::move(*opened);
    loop->parts().workers.set_own(std::make_unique<SilentWorker>(worker));
    Latch::while_waiting = &step_;
  }
  ~OpenEngine() { Latch::while_waiting = nullptr; }
  OpenEngine(const OpenEngine&) = delete;
  OpenEngine& operator=(const OpenEngine&) = delete;

  /// Runs turns until nothing is left to do.
  void settle() {
    while (loop->run_turn() || loop->write_deferred()) {
    }
  }
  Prepared prepared(const std::string& id, std::shared_ptr<const Plan> plan) {
    Prepared made;
    made.plan_bytes = encode_plan(*plan);
    made.plan = std::move(plan);
    made.context.record.id = id;
    made.context.record.pipeline = "p";
    made.context.record.plan_digest = sha256(made.plan_bytes);
    made.context.bundle = std::make_shared<const std::string>("bundle");
    made.context.record.bundle_digest = sha256("bundle");
    made.context.listener = listener;
    return made;
  }
  void submit(const std::string& id, std::shared_ptr<const Plan> plan) {
    Status submitted = loop->submit(prepared(id, std::move(plan)), 2);
    if (!submitted.ok()) FAIL(submitted.error().message);
    settle();
  }
  void finish(const core::AttemptId& id, const Value& result) {
    TaskFinished finished;
    finished.value = encode_value(result);
    loop->parts().on_reports({{id, 0, 0, std::move(finished)}});
    settle();
  }
  const core::Run& run(const std::string& id) { return loop->parts().state.runs.at(id); }

  core::Time now = 1'000'000;
  WorkerLog worker;
  std::vector<FrontOrder> front_orders;
  std::shared_ptr<KeepingListener> listener = std::make_shared<KeepingListener>();
  std::unique_ptr<EngineLoop> loop;

 private:
  const std::function<void()> step_ = [this] {
    if (!loop->run_turn()) loop->write_deferred();
  };
};

}  // namespace flow
