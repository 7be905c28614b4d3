// Records and states for tests of the journal: a small plan, events of it, and stored bytes of old
// schemas.
#pragma once
#include <catch2/catch.hpp>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/store/store.hpp"

namespace flow::test {

inline std::shared_ptr<const Plan> small_plan() {
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "p";
  TaskDef def;
  def.name = "t";
  plan->defs.push_back(def);
  for (const char* name : {"t", "t#2"}) {
    TaskNode node;
    node.name = name;
    node.args = Value::list({});
    plan->nodes.push_back(node);
  }
  plan->nodes[1].args = Value::list({Value(Ref{0, {}})});
  plan->result = Value(Ref{1, {}});
  return plan;
}

struct Sources {
  std::shared_ptr<const Plan> plan = small_plan();
  Digest digest = sha256(encode_plan(*plan));
  std::shared_ptr<const PlanFragment> fragment = std::make_shared<const PlanFragment>();
  Digest fragment_digest = sha256("fragment");
  FindPlan find_plan = [this](const Digest& d) { return d == digest ? plan : nullptr; };
  FindFragment find_fragment = [this](const Digest& d) {
    return d == fragment_digest ? fragment : nullptr;
  };
};

inline std::vector<core::Record> one_of_each(const Sources& sources) {
  core::AttemptId id{"run-1", 1, 2, 3 << 16};
  core::Failure failure{core::Cause::signal, "it died\xff", "evidence", 9};
  core::RunSubmitted submitted{"run-1", "name", sources.digest, sources.plan, 4, true, true};
  core::InputsResolved resolved{
      "run-1", 1, sha256("key"), true, sha256("result"), sources.fragment, sources.fragment_digest};
  core::AttemptSucceeded succeeded{id, sha256("result"), sources.fragment, sources.fragment_digest,
                                   1234};
  std::vector<core::Event> events = {
      core::EngineStarted{7, 2000, int64_t{1} << 34, {}, false, false},
      submitted,
      resolved,
      core::InputsResolved{"run-1", 0, sha256("k2"), false, {}, nullptr, {}},
      core::InputsFailed{"run-1", 1, failure},
      core::MapExpanded{"run-1", 1, 5},
      core::WhenResolved{"run-1", 1, true},
      core::ValueGathered{"run-1", kNoNode, sha256("v")},
      core::Assigned{id},
      core::AttemptRequeued{id},
      succeeded,
      core::AttemptFailed{id, failure},
      core::AttemptWaiting{id, "signal", "wait#2", 99},
      core::AttemptStopped{id},
      core::ServiceReady{id, "http://127.0.0.1:1"},
      core::StepSaved{id, "step", sha256("s")},
      core::CheckpointSaved{id, sha256("c")},
      core::SignalReceived{"run-2", "go", sha256("true")},
      core::TimerFired{"run-1", 1, 4},
      core::CancelRequested{"run-1"},
      core::StopRequested{"run-1"},
      core::ServeEnded{"run-1"},
      core::RetryRequested{"run-1", true, 1},
      core::RunDeleted{"run-1"}};
  std::vector<core::Record> records;
  for (core::Event& event : events)
    records.push_back({records.size() + 1, int64_t{1000} + static_cast<int64_t>(records.size()),
                       std::move(event)});
  return records;
}

inline std::vector<core::Record> of_budgets() {
  core::BudgetSet set;
  set.run = "run-1";
  set.terms.prices.currency = "USD";
  set.terms.prices.base = {40'000'000, 5'000'000, {{"H200", 3'500'000'000}}, 0};
  set.terms.prices.labels = {{"pool", "spot", {10'000'000, kNoPrice, {}, kNoPrice}}};
  set.terms.limit_nano = 50'000'000'000;
  set.terms.before_nano = 1;
  return {{1, 1000, set}, {2, 1001, core::BudgetReached{"run-1"}}};
}

inline std::vector<core::Record> of_gpus() {
  core::GpusFound found;
  found.gpus.push_back({0, "GPU-a", "NVIDIA H200", "0000:1b:00.0", int64_t{140} << 30, 1, false});
  found.gpus.push_back({1, "MIG-b", "NVIDIA A100 MIG 1g.5gb", "0000:9b:00.0", 5000, -1, true});
  core::Assigned assigned{{"run-1", 1, 2, 3 << 16}, {"GPU-a", "MIG-b"}};
  return {{1, 1000, found}, {2, 1001, assigned}};
}

inline std::vector<core::Record> of_disconnected_workers() {
  core::WorkerInfo worker{"w1", 4000, int64_t{1} << 33, {}, {{"rack", "a"}, {"zone", "b"}}};
  core::WorkerJoined joined{worker, {{"run-1", 1, 2, 3 << 16}, {"run-2", 0, 1, (3 << 16) + 1}}};
  return {{1, 1000, joined}, {2, 1001, core::WorkerDisconnected{1, "its line was cut"}}};
}

/// Applies the event to the state, which must admit it.
inline void record(core::State& live, core::Event event) {
  std::vector<core::Command> ignored;
  REQUIRE(core::admit(live, event));
  core::apply(live, {live.sequence + 1, 1000, std::move(event)}, ignored);
}

inline std::string hex(std::string_view bytes) {
  std::ostringstream out;
  for (unsigned char c : bytes) out << "0123456789abcdef"[c >> 4] << "0123456789abcdef"[c & 15];
  return out.str();
}

inline std::string unhex(const std::string& text) {
  std::string out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return out;
}

/// The lines of the file; "" if it does not exist.
inline std::string pinned(const std::string& name) {
  std::ifstream file(FLOW_PINNED_DIR "/" + name + ".hex");
  std::string text, line;
  while (file >> line) text += (text.empty() ? "" : "\n") + line;
  return text;
}

/// The first field of a batch.
inline std::string schema_bytes(int schema) { return {'\x08', static_cast<char>(schema)}; }

}  // namespace flow::test
