#include "tests/sim/engine_plans.hpp"

#include <utility>
#include <vector>

#include "flow/value.hpp"

namespace flow::sim {

namespace {

enum : uint32_t { kPlain, kUncached, kWide, kFlag, kList, kPair, kServe, kDefinitions };
constexpr const char* kNames[] = {"plain", "uncached", "wide", "flag", "list", "pair", "serve"};
constexpr uint32_t kOwnFailuresMax = 3;

uint64_t number_of(const Digest& digest, int word) {
  uint64_t number = 0;
  for (int i = 0; i < 8; i++) number = number << 8 | digest.bytes[size_t(word * 8 + i)];
  return number;
}

std::vector<TaskDef> definitions() {
  std::vector<TaskDef> defs(kDefinitions);
  for (uint32_t i = 0; i < kDefinitions; i++) {
    defs[i].name = kNames[i];
    defs[i].retry.max = kOwnFailuresMax;
    defs[i].retry.infra = 100'000;
    defs[i].retry.backoff_ms = i % 2 == 0 ? 0 : 5;
    defs[i].retry.cap_ms = 20;
  }
  defs[kUncached].cache = false;
  defs[kWide].resources.cpus_milli = 2000;
  defs[kPair].resources.cpus_milli = 500;
  defs[kPair].resources.ranks = 2;
  defs[kServe].kind = TaskKind::service;
  return defs;
}

class PlanMaker {
 public:
  explicit PlanMaker(Random& random) : random_(random) {}

  std::shared_ptr<const Plan> make() {
    plan_->pipeline = "random";
    plan_->defs = definitions();
    grow(1 + random_.below(7), {}, true);
    if (random_.one_in(6)) add_service();
    std::vector<Value> parts;
    for (uint32_t node : results_)
      if (random_.one_in(2)) parts.push_back(Value(Ref{node, {}}));
    plan_->result = Value::list(std::move(parts));
    return plan_;
  }

 private:
  void grow(uint32_t count, Guard guard, bool may_branch) {
    for (uint32_t i = 0; i < count; i++) {
      uint32_t kind = random_.below(8);
      if (kind == 0 && may_branch) {
        add_when();
      } else if (kind <= 2) {
        add_map(guard);
      } else {
        results_.push_back(add_task(random_.one_in(4) ? uint32_t{kPair} : random_.below(3), guard));
      }
    }
  }

  uint32_t add(TaskNode node, Guard guard) {
    auto index = static_cast<uint32_t>(plan_->nodes.size());
    node.name = "n" + std::to_string(index);
    node.guard = guard;
    plan_->nodes.push_back(std::move(node));
    return index;
  }

  Value some() {
    if (results_.empty() || random_.one_in(3)) return Value(int64_t{random_.below(1000)});
    return Value(Ref{results_[random_.below(static_cast<uint32_t>(results_.size()))], {}});
  }

  uint32_t add_task(uint32_t def, Guard guard) {
    TaskNode node;
    node.def = def;
    node.args = Value::list({Value(int64_t{random_.below(1000)}), some()});
    return add(std::move(node), guard);
  }

  void add_map(Guard guard) {
    uint32_t list = random_.one_in(2) ? add_task(kList, guard) : kNoNode;
    TaskNode node;
    node.kind = NodeKind::map;
    node.def = random_.below(3);
    node.limit = random_.below(3);
    node.args = Value::list({some()});
    std::vector<Value> items;
    for (uint32_t i = random_.below(4); i > 0; i--) items.push_back(some());
    node.items = list == kNoNode ? Value::list(std::move(items)) : Value(Ref{list, {}});
    results_.push_back(add(std::move(node), guard));
  }

  void add_when() {
    uint32_t flag = add_task(kFlag, {});
    TaskNode node;
    node.kind = NodeKind::when;
    node.condition = Value(Ref{flag, {}});
    uint32_t when = add(std::move(node), {});
    for (bool is_then : {true, false}) {
      std::vector<uint32_t> before = results_;
      grow(random_.below(3), {when, is_then}, false);
      bool is_empty = results_.size() == before.size();
      Value value = is_empty ? Value(int64_t{1}) : Value(Ref{results_.back(), {}});
      (is_then ? plan_->nodes[when].then_value : plan_->nodes[when].else_value) = value;
      results_ = before;
    }
    results_.push_back(when);
  }

  void add_service() {
    uint32_t service = add_task(kServe, {});
    uint32_t last = add_task(kPlain, {});
    plan_->nodes[last].after = {service};
  }

  Random& random_;
  std::shared_ptr<Plan> plan_ = std::make_shared<Plan>();
  std::vector<uint32_t> results_;  // nodes whose results others may take
};

}  // namespace

std::shared_ptr<const Plan> small_plan(Random& random) { return PlanMaker(random).make(); }

TaskBehaviour task_behaviour(const Digest& key) {
  Random random(number_of(key, 1));
  TaskBehaviour behaviour;
  behaviour.takes = 1 + random.below(30);
  behaviour.saves = random.one_in(3) ? 1 + random.below(3) : 0;
  uint32_t kind = random.below(16);
  behaviour.always_fails = kind == 0;
  behaviour.waits_for_signal = kind == 1;
  behaviour.waits_for_timeout = kind == 2 || kind == 3;
  if (kind >= 4 && kind <= 6) behaviour.failures = 1 + random.below(kOwnFailuresMax);
  return behaviour;
}

std::string result_of(const std::string& name, const Digest& key) {
  uint64_t number = number_of(key, 2);
  if (name == kNames[kFlag]) return encode_value(Value(number % 2 == 0));
  if (name != kNames[kList]) return encode_value(Value(static_cast<int64_t>(number >> 1)));
  std::vector<Value> items;
  for (uint64_t i = 0; i < number % 4; i++) items.push_back(Value(static_cast<int64_t>(i)));
  return encode_value(Value::list(std::move(items)));
}

}  // namespace flow::sim
