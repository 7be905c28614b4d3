// Random graphs and pure tasks.
#include "tests/sim/content.hpp"

#include <algorithm>

namespace flow::sim {

namespace {

using core::Run;
using core::Unit;
using core::UnitId;

enum : uint32_t {
  kPlain,
  kFat,
  kUncached,
  kUrgent,
  kShare,
  kWhole,
  kGang,
  kPair,
  kElastic,
  kDynamic,
  kService,
  kDefs
};

uint64_t number_of(const Digest& digest, int word) {
  uint64_t number = 0;
  for (int i = 0; i < 8; i++) number = number << 8 | digest.bytes[size_t(word * 8 + i)];
  return number;
}

std::vector<TaskDef> definitions() {
  std::vector<TaskDef> defs(kDefs);
  const char* names[] = {"plain", "fat",  "uncached", "urgent", "share", "whole",
                         "gang",  "pair", "elastic",  "dyn",    "srv"};
  for (uint32_t i = 0; i < kDefs; i++) {
    defs[i].name = names[i];
    defs[i].retry.max = kOwnFailuresMax;
    defs[i].retry.infra = 100'000;
    defs[i].retry.backoff_ms = i % 2 == 0 ? 0 : 5;
    defs[i].retry.cap_ms = 20;
  }
  defs[kFat].resources = {2000, 300, 0, 0, "", "", 1};
  defs[kFat].resources.custom_resources = {{"licence", 1000}};
  defs[kUncached].cache = false;
  defs[kUrgent].priority = 3;
  defs[kShare].resources = {1000, 0, 300, 30, "", "", 1};
  defs[kWhole].resources = {1000, 0, 2000, 0, "", "", 1};
  defs[kGang].resources.ranks = 4;
  defs[kPair].resources = {500, 100, 1000, 0, "", "", 2};
  defs[kElastic].resources.ranks = 2;
  defs[kElastic].resources.ranks_max = 5;
  defs[kElastic].resources.custom_resources = {{"licence", 400}};
  defs[kDynamic].kind = TaskKind::dynamic;
  defs[kService].kind = TaskKind::service;
  return defs;
}

class Graph {
 public:
  Graph(Random& random, std::vector<TaskNode>& nodes, bool with_dynamic)
      : random_(random), nodes_(nodes), with_dynamic_(with_dynamic) {}

  /// Appends `count` nodes that may take from `from`; returns those that later ones may take.
  std::vector<uint32_t> grow(uint32_t count, std::vector<uint32_t> from, Guard guard, int depth) {
    std::vector<uint32_t> made;
    for (uint32_t i = 0; i < count; i++) {
      uint32_t kind = random_.below(10);
      uint32_t node;
      if (kind == 0 && depth > 0 && !from.empty()) {
        node = add_when(from, guard, depth, made);
      } else if (kind <= 2) {
        node = add_map(from, guard);
      } else {
        node = add_task(from, guard);
      }
      from.push_back(node);
      made.push_back(node);
    }
    return made;
  }

 private:
  uint32_t add(TaskNode node, const std::vector<uint32_t>& from, Guard guard) {
    uint32_t index = static_cast<uint32_t>(nodes_.size());
    if (node.name.empty()) node.name = "n" + std::to_string(index);
    node.guard = guard;
    if (!from.empty() && random_.one_in(6)) node.after.push_back(pick(from));
    nodes_.push_back(std::move(node));
    return index;
  }
  uint32_t pick(const std::vector<uint32_t>& from) {
    return from[random_.below(static_cast<uint32_t>(from.size()))];
  }
  Value some(const std::vector<uint32_t>& from) {
    return from.empty() || random_.one_in(3) ? Value(int64_t{random_.below(4)})
                                             : Value(Ref{pick(from), {}});
  }
  Value arguments(const std::vector<uint32_t>& from) {
    std::vector<Value> args{Value(int64_t{random_.below(1000)})};
    if (random_.one_in(4)) args[0] = Value(int64_t{7});  // so that keys are equal now and then
    for (uint32_t i = random_.below(3); i > 0; i--) args.push_back(some(from));
    return Value::list(std::move(args));
  }
  uint32_t definition() {
    uint32_t def = random_.below(with_dynamic_ ? kDynamic + 1 : kDynamic);
    return random_.one_in(2) ? uint32_t{kPlain} : def;
  }
  uint32_t add_task(const std::vector<uint32_t>& from, Guard guard) {
    TaskNode node;
    node.def = definition();
    node.args = arguments(from);
    return add(std::move(node), from, guard);
  }
  uint32_t add_map(const std::vector<uint32_t>& from, Guard guard) {
    TaskNode node;
    node.kind = NodeKind::map;
    node.def = definition();
    node.limit = random_.below(3);
    node.args = arguments(from);
    if (from.empty() || random_.one_in(2)) {
      std::vector<Value> items;
      for (uint32_t i = random_.below(4); i > 0; i--) items.push_back(some(from));
      node.items = Value::list(std::move(items));
    } else {
      node.items = Value(Ref{pick(from), {}});
    }
    return add(std::move(node), from, guard);
  }
  uint32_t add_when(const std::vector<uint32_t>& from, Guard guard, int depth,
                    std::vector<uint32_t>& made) {
    TaskNode node;
    node.kind = NodeKind::when;
    node.condition = Value(Ref{pick(from), {}});
    uint32_t when = add(std::move(node), {}, guard);
    for (bool side : {true, false}) {
      std::vector<uint32_t> branch = grow(random_.below(3), from, {when, side}, depth - 1);
      Value value = branch.empty() ? Value() : Value::list({Value(Ref{pick(branch), {}})});
      (side ? nodes_[when].then_value : nodes_[when].else_value) = value;
      // A handle made in a branch may be used outside: it is skipped with the branch.
      if (!branch.empty() && random_.one_in(3)) made.push_back(branch[0]);
    }
    return when;
  }

  Random& random_;
  std::vector<TaskNode>& nodes_;
  bool with_dynamic_;
};

void add_content(const Run& run, const Value& value, std::string& text) {
  if (value.kind() == Value::Kind::ref) {
    text += run.units[value.as_ref().node].result.hex();
  } else if (value.kind() == Value::Kind::table) {
    for (const Value& item : value.as_table().list) add_content(run, item, text);
  } else if (value.kind() == Value::Kind::integer) {
    text += std::to_string(value.as_integer());
  }
  text += ',';
}

}  // namespace

std::vector<Gpu> machine_gpus() {
  std::vector<Gpu> gpus(2);
  for (uint32_t i = 0; i < gpus.size(); i++) {
    gpus[i].index = i;
    gpus[i].uuid = "GPU-" + std::to_string(i);
    gpus[i].memory_bytes = 70;
  }
  return gpus;
}

std::shared_ptr<const Plan> random_plan(uint64_t seed) {
  Random random(seed);
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "random";
  plan->defs = definitions();
  Graph graph(random, plan->nodes, true);
  std::vector<uint32_t> made = graph.grow(1 + random.below(14), {}, Guard{}, 2);
  if (random.one_in(4)) {
    TaskNode service;
    service.name = "service";
    service.def = kService;
    service.args = Value::list({Value(Ref{made[random.below(uint32_t(made.size()))], {}})});
    uint32_t index = static_cast<uint32_t>(plan->nodes.size());
    plan->nodes.push_back(std::move(service));
    TaskNode last;
    last.name = "after_service";
    last.args = Value::list({Value(int64_t{1})});
    last.after = {index};
    plan->nodes.push_back(std::move(last));
  }
  std::vector<Value> parts;
  for (uint32_t node : made) {
    if (random.one_in(2)) parts.push_back(Value(Ref{node, {}}));
  }
  plan->result = Value::list(std::move(parts));
  return plan;
}

std::shared_ptr<const PlanFragment> calls_of(const Plan&, const Digest& key) {
  Random random(number_of(key, 3));
  auto fragment = std::make_shared<PlanFragment>();
  Graph graph(random, fragment->nodes, false);
  std::vector<uint32_t> made = graph.grow(random.below(4), {}, Guard{}, 1);
  for (TaskNode& node : fragment->nodes) node.name = "dyn/" + node.name;
  std::vector<Value> parts;
  for (uint32_t node : made) {
    if (random.one_in(2)) parts.push_back(Value(Ref{node, {}}));
  }
  fragment->result = Value::list(std::move(parts));
  return fragment;
}

Behaviour behaviour_of(const Digest& key) {
  Random random(number_of(key, 1));
  Behaviour b;
  b.takes = 1 + random.below(30);
  b.steps = random.one_in(4) ? random.below(3) : 0;
  uint32_t kind = random.below(20);
  if (kind == 0) b.kind = Behaviour::Kind::fails;
  if (kind == 1) b.kind = Behaviour::Kind::waits_for_signal;
  if (kind == 2) b.kind = Behaviour::Kind::waits_for_deadline;
  if (kind >= 3 && kind <= 5) b.failures = 1 + random.below(kOwnFailuresMax);
  return b;
}

Digest result_of(const Digest& key) { return sha256("result of " + key.hex()); }

Digest key_of(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  const TaskNode& node = run.node(u.node);
  std::string text = core::def_of(run, unit)->name + "(";
  if (u.instance >= 0) {
    if (node.items.kind() == Value::Kind::ref) {
      text += run.units[node.items.as_ref().node].result.hex() + "/" + std::to_string(u.instance);
    } else {
      add_content(run, node.items.as_table().list[size_t(u.instance)], text);
    }
  }
  add_content(run, node.args, text);
  return sha256(text);
}

uint32_t count_of(const Run& run, UnitId map_unit) {
  const TaskNode& node = run.node(run.units[map_unit].node);
  if (node.items.kind() != Value::Kind::ref) {
    return static_cast<uint32_t>(node.items.as_table().list.size());
  }
  return uint32_t(number_of(run.units[node.items.as_ref().node].result, 2) % 4);
}

bool takes_then_branch(const Run& run, UnitId when_unit) {
  const TaskNode& node = run.node(run.units[when_unit].node);
  return number_of(run.units[node.condition.as_ref().node].result, 2) % 2 == 0;
}

Digest gathered(const Run& run, UnitId unit) {
  std::string text;
  if (unit == kNoNode) {
    add_content(run, run.plan->result, text);
    return sha256("run " + text);
  }
  const Unit& u = run.units[unit];
  const TaskNode& node = run.node(u.node);
  if (node.kind == NodeKind::when) {
    add_content(run, u.branch == core::Branch::then_branch ? node.then_value : node.else_value,
                text);
  } else if (node.kind == NodeKind::map && u.instance < 0) {
    for (UnitId instance : core::instances_of(run, unit)) text += run.units[instance].result.hex();
  } else {
    const Value* value = core::dynamic_value(run, unit);
    FLOW_CHECK(value != nullptr);
    add_content(run, *value, text);
  }
  return sha256("gathered " + text);
}

}  // namespace flow::sim
