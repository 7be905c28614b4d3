#include "tests/sim/engine_plans.hpp"

#include <utility>
#include <vector>

#include "flow/value.hpp"

namespace flow::sim {

namespace {

enum : uint32_t {
  kPlain,
  kUncached,
  kWide,
  kFat,
  kUrgent,
  kShare,
  kWhole,
  kGang,
  kPair,
  kElastic,
  kDynamic,
  kFlag,
  kList,
  kServe,
  kReplicas,
  kDefinitions
};
constexpr const char* kNames[] = {"plain", "uncached", "wide", "fat",     "urgent",
                                  "share", "whole",    "gang", "pair",    "elastic",
                                  "dyn",   "flag",     "list", "service", "replicas"};
constexpr int64_t kMiB = 1 << 20;
constexpr uint32_t kInfraRetries = 40;  // more than faults strike; a task whose input is gone fails

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
    defs[i].retry.infra = kInfraRetries;
    defs[i].retry.backoff_ms = i % 2 == 0 ? 0 : 5;
    defs[i].retry.cap_ms = 20;
  }
  defs[kUncached].cache = false;
  defs[kWide].resources.cpus_milli = 2000;
  defs[kFat].resources.cpus_milli = 2000;
  defs[kFat].resources.memory_bytes = 300 * kMiB;
  defs[kFat].resources.custom_resources = {{kLicence, 1000}};
  defs[kUrgent].priority = 3;
  defs[kShare].resources.gpus_milli = 300;
  defs[kShare].resources.gpu_memory_bytes = 30;
  defs[kWhole].resources.gpus_milli = 2000;
  defs[kGang].resources.ranks = 4;
  defs[kPair].resources.cpus_milli = 500;
  defs[kPair].resources.memory_bytes = 100 * kMiB;
  defs[kPair].resources.gpus_milli = 1000;
  defs[kPair].resources.ranks = 2;
  defs[kElastic].resources.ranks = 2;
  defs[kElastic].resources.ranks_max = 5;
  defs[kElastic].resources.custom_resources = {{kLicence, 400}};
  defs[kDynamic].kind = TaskKind::dynamic;
  defs[kServe].kind = defs[kReplicas].kind = TaskKind::service;
  defs[kReplicas].service.replicas = 2;
  defs[kReplicas].service.scaling.max = 4;
  return defs;
}

/// Adds random nodes to a plan, or to the calls of a dynamic task.
class Graph {
 public:
  Graph(Random& random, std::vector<TaskNode>& nodes, std::string prefix, bool may_be_dynamic)
      : random_(random),
        nodes_(nodes),
        prefix_(std::move(prefix)),
        definitions_(may_be_dynamic ? kDynamic + 1 : uint32_t{kDynamic}) {}

  /// Appends nodes that may take the results of `from`. Returns those that later nodes may take.
  std::vector<uint32_t> grow(uint32_t count, std::vector<uint32_t> from, Guard guard, int depth) {
    std::vector<uint32_t> made;
    for (uint32_t i = 0; i < count; i++) {
      uint32_t kind = random_.below(10);
      uint32_t node;
      if (kind == 0 && depth > 0) {
        node = add_when(from, guard, depth, made);
      } else if (kind <= 2) {
        node = add_map(from, guard);
      } else {
        node = add_task(definition(), from, guard);
      }
      from.push_back(node);
      made.push_back(node);
    }
    return made;
  }

  uint32_t add_task(uint32_t def, const std::vector<uint32_t>& from, Guard guard) {
    TaskNode node;
    node.def = def;
    node.args = arguments(from);
    return add(std::move(node), from, guard);
  }

 private:
  uint32_t add(TaskNode node, const std::vector<uint32_t>& from, Guard guard) {
    auto index = static_cast<uint32_t>(nodes_.size());
    node.name = prefix_ + std::to_string(index);
    node.guard = guard;
    if (!from.empty() && random_.one_in(6)) node.edit_detail().after.push_back(one_of(from));
    nodes_.push_back(std::move(node));
    return index;
  }

  uint32_t one_of(const std::vector<uint32_t>& from) {
    return from[random_.below(static_cast<uint32_t>(from.size()))];
  }

  Value some(const std::vector<uint32_t>& from) {
    if (from.empty() || random_.one_in(3)) return Value(int64_t{random_.below(4)});
    return Value(Ref{one_of(from), {}});
  }

  // Equal keys occur now and then.
  Value arguments(const std::vector<uint32_t>& from) {
    bool is_common = random_.one_in(4);
    std::vector<Value> args{Value(int64_t{is_common ? 7 : random_.below(1000)})};
    for (uint32_t i = random_.below(3); i > 0; i--) args.push_back(some(from));
    return Value::list(std::move(args));
  }

  uint32_t definition() {
    uint32_t def = random_.below(definitions_);
    return random_.one_in(2) ? uint32_t{kPlain} : def;
  }

  uint32_t add_map(const std::vector<uint32_t>& from, Guard guard) {
    uint32_t list = random_.one_in(2) ? add_task(kList, from, guard) : kNoNode;
    TaskNode node;
    node.kind = NodeKind::map;
    node.def = definition();
    node.edit_detail().limit = random_.below(3);
    node.args = arguments(from);
    std::vector<Value> items;
    for (uint32_t i = random_.below(4); i > 0; i--) items.push_back(some(from));
    node.edit_detail().items =
        list == kNoNode ? Value::list(std::move(items)) : Value(Ref{list, {}});
    return add(std::move(node), from, guard);
  }

  uint32_t add_when(const std::vector<uint32_t>& from, Guard guard, int depth,
                    std::vector<uint32_t>& made) {
    uint32_t flag = add_task(kFlag, from, guard);
    TaskNode node;
    node.kind = NodeKind::when;
    node.edit_detail().condition = Value(Ref{flag, {}});
    uint32_t when = add(std::move(node), {}, guard);
    for (bool is_then : {true, false}) {
      std::vector<uint32_t> branch = grow(random_.below(3), from, {when, is_then}, depth - 1);
      Value value = branch.empty() ? Value() : Value::list({Value(Ref{one_of(branch), {}})});
      NodeDetail& detail = nodes_[when].edit_detail();
      (is_then ? detail.then_value : detail.else_value) = value;
      // A handle that a branch made may be used outside: its consumer is skipped with the branch.
      if (!branch.empty() && random_.one_in(3)) made.push_back(branch[0]);
    }
    return when;
  }

  Random& random_;
  std::vector<TaskNode>& nodes_;
  const std::string prefix_;
  const uint32_t definitions_;
};

Value some_results(Random& random, const std::vector<uint32_t>& nodes) {
  std::vector<Value> parts;
  for (uint32_t node : nodes)
    if (random.one_in(2)) parts.push_back(Value(Ref{node, {}}));
  return Value::list(std::move(parts));
}

}  // namespace

std::vector<Gpu> two_gpus(const std::string& machine) {
  std::vector<Gpu> gpus(2);
  for (uint32_t i = 0; i < gpus.size(); i++) {
    gpus[i].index = i;
    gpus[i].uuid = "GPU-" + machine + "-" + std::to_string(i);
    gpus[i].memory_bytes = 70;
  }
  return gpus;
}

std::shared_ptr<const Plan> random_plan(Random& random) {
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "random";
  plan->defs = definitions();
  Graph graph(random, plan->nodes, "n", true);
  std::vector<uint32_t> made = graph.grow(1 + random.below(9), {}, {}, 2);
  plan->result = some_results(random, made);
  if (!random.one_in(6)) return plan;
  uint32_t service = graph.add_task(made.size() % 3 == 0 ? kServe : kReplicas, made, {});
  uint32_t last = graph.add_task(kPlain, {}, {});
  plan->nodes[last].edit_detail().after = {service};
  return plan;
}

PlanFragment calls_of(const Digest& key) {
  Random random(number_of(key, 3));
  PlanFragment calls;
  Graph graph(random, calls.nodes, "dyn/", false);
  calls.result = some_results(random, graph.grow(random.below(4), {}, {}, 1));
  return calls;
}

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

bool is_own_result(const std::string& name) {
  return name != kNames[kFlag] && name != kNames[kList] && name != kGateTask;
}

std::string result_of(const std::string& name, const Digest& key) {
  uint64_t number = number_of(key, 2);
  if (name == kNames[kFlag]) return encode_value(Value(number % 2 == 0));
  if (name == kGateTask) return encode_value(Value(number % 4 != 0));
  if (name != kNames[kList]) return encode_value(Value(static_cast<int64_t>(number >> 1)));
  std::vector<Value> items;
  for (uint64_t i = 0; i < number % 4; i++) items.push_back(Value(static_cast<int64_t>(i)));
  return encode_value(Value::list(std::move(items)));
}

}  // namespace flow::sim
