// Edges between a run's units.
#include "engine/core/graph.hpp"

#include <algorithm>

#include "engine/core/scaling.hpp"
#include "engine/plan/values.hpp"
#include "flow/tags.hpp"

namespace flow::core {

namespace {

void add_refs(const Value& value, std::vector<Edge>& out) {
  for_each_ref(value, [&](UnitId unit) { out.push_back({unit, false}); });
}

void add_order(const TaskNode& node, std::vector<Edge>& out) {
  for (uint32_t unit : node.detail().after) out.push_back({unit, false});
  if (node.guard.when != kNoNode) out.push_back({node.guard.when, true});
}

void keep_one_each(std::vector<Edge>& edges) {
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
}

/// A copy of `value` with `offset` added to every ref. Parts without refs are shared.
Value with_refs_moved(const Value& value, uint32_t offset) {
  if (value.kind() == Value::Kind::ref) {
    Ref ref = value.as_ref();
    ref.node += offset;
    return Value(std::move(ref));
  }
  if (value.kind() != Value::Kind::table || refs_of(value).empty()) return value;
  Value::Table table = value.as_table();
  for (Value& item : table.list) item = with_refs_moved(item, offset);
  for (auto& [key, field] : table.fields) field = with_refs_moved(field, offset);
  return Value(std::move(table));
}

/// The call's name with its dynamic unit as prefix. Cached calls may carry the name of the node
/// that made them first.
std::string call_name(const std::string& name, const std::string& owner, const std::string& task) {
  if (name.rfind(owner + "/", 0) == 0) return name;
  size_t at = 0;
  while (at != std::string::npos) {
    size_t end = name.find('/', at);
    if (end == std::string::npos) break;
    std::string part = name.substr(at, end - at);
    bool is_task =
        part.rfind(task, 0) == 0 &&
        (part.size() == task.size() || part[task.size()] == '#' || part[task.size()] == '[');
    if (is_task) return owner + name.substr(end);
    at = end + 1;
  }
  return owner + "/" + name;
}

void mark_unit_consumed(Run& run, UnitId unit) {
  if (unit >= run.is_consumed.size()) run.is_consumed.resize(unit + size_t{1});
  run.is_consumed[unit] = true;
}

}  // namespace

bool has_literal_items(const TaskNode& node) {
  return node.kind == NodeKind::map && node.detail().items.kind() == Value::Kind::table &&
         !node.detail().items.as_table().list.empty();
}

namespace {

/// The replicas of a service that has, or may have, more than one; else 0.
uint32_t replicas_of(const Plan& plan, const TaskNode& node) {
  if (node.kind != NodeKind::task) return 0;
  const TaskDef& def = plan.defs[node.def];
  uint32_t replicas = std::max(def.service.replicas, def.service.scaling.max);
  return def.kind == TaskKind::service && replicas > 1 ? replicas : 0;
}

}  // namespace

size_t instances_from_start(const Plan& plan, const TaskNode& node) {
  if (has_literal_items(node)) return node.detail().items.as_table().list.size();
  return replicas_of(plan, node);
}

bool is_map_unit(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  return u.instance < 0 && run.node(u.node).kind == NodeKind::map;
}

bool is_replica_set(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  return u.instance < 0 && replicas_of(*run.plan, run.node(u.node)) > 0;
}

bool may_have_instances(const Run& run, UnitId unit) {
  return is_map_unit(run, unit) || is_replica_set(run, unit);
}

bool is_dynamic(const Run& run, UnitId unit) {
  if (is_map_unit(run, unit)) return false;
  const TaskDef* def = def_of(run, unit);
  return def != nullptr && def->kind == TaskKind::dynamic;
}

void EdgeReader::before(UnitId unit, std::vector<Edge>& out) {
  out.clear();
  const Unit& u = run_.units[unit];
  const TaskNode& node = run_.node(u.node);
  bool literal = has_literal_items(node);
  bool waits_for_instances = u.instance < 0 && instances_from_start(*run_.plan, node) > 0;
  if (waits_for_instances) return;
  if (node.kind == NodeKind::map && u.instance >= 0 && !literal) return;  // its map waited for all
  if (common_of_ != u.node) {
    common_of_ = u.node;
    common_.clear();
    if (literal) {
      for_each_ref(node.args, [&](UnitId from) { common_.push_back({from, false}); });
    } else {
      for_each_data_ref(node, [&](UnitId from) { common_.push_back({from, false}); });
    }
    add_order(node, common_);
    keep_one_each(common_);
  }
  out = common_;
  if (!literal) return;
  add_refs(node.detail().items.as_table().list[static_cast<size_t>(u.instance)], out);
  keep_one_each(out);
}

void result_edges(const Run& run, UnitId unit, std::vector<Edge>& out) {
  out.clear();
  const Unit& u = run.units[unit];
  const TaskNode& node = run.node(u.node);
  if (node.kind == NodeKind::when) {
    if (u.branch == Branch::unknown) return;
    add_refs(u.branch == Branch::then_branch ? node.detail().then_value : node.detail().else_value,
             out);
  } else if (const Value* value = dynamic_value(run, unit)) {
    add_refs(*value, out);
  }
  keep_one_each(out);
}

std::set<UnitId> joins_of_services(const Run& run) {
  std::set<UnitId> joins;
  std::vector<UnitId> held;
  for (UnitId service : run.services)
    if (!run.units[service].dropped) held.push_back(run.unit_of(run.units[service].node));
  auto add = [&](UnitId join) {
    if (joins.insert(join).second) held.push_back(join);
  };
  std::vector<Edge> edges;
  for (size_t i = 0; i < held.size(); i++) {
    UnitId from = held[i];
    if (run.units[from].instance >= 0) add(run.unit_of(run.units[from].node));  // its map
    for_each_dependent(run, from, [&](UnitId dependent, bool guard) {
      if (guard || run.units[dependent].dropped || joins.contains(dependent)) return;
      result_edges(run, dependent, edges);
      bool holds = std::ranges::any_of(edges, [&](const Edge& edge) { return edge.from == from; });
      if (holds) add(dependent);
    });
  }
  return joins;
}

bool is_satisfied(const Run& run, UnitId unit, const Edge& edge) {
  const Unit& from = run.units[edge.from];
  if (!edge.guard) return from.satisfied;
  bool then_branch = run.node(run.units[unit].node).guard.then_branch;
  return from.branch == (then_branch ? Branch::then_branch : Branch::else_branch);
}

bool is_dead(const Run& run, UnitId unit, const Edge& edge) {
  if (is_satisfied(run, unit, edge)) return false;
  const Unit& from = run.units[edge.from];
  if (edge.guard && from.branch != Branch::unknown) return true;
  return is_final(from.status);
}

void add_late_edge(Run& run, UnitId unit, const Edge& edge) {
  run.dependents.late[edge.from].push_back(edge.guard ? unit | Dependents::kGuard : unit);
}

namespace {

/// Tagged names that units of the run have, and those that are to be added.
class TaggedNames {
 public:
  explicit TaggedNames(const Run& run) : run_(run) {}

  /// Remembers the first conflict. `name` is that of the unit without its tag.
  void add(const std::string& name, const std::string& tag) {
    if (tag.empty() || !conflict_.empty()) return;
    std::string tagged = tagged_name(name, tag), other;
    auto found = run_.tagged.find(tagged);
    if (found != run_.tagged.end() && !run_.units[found->second].dropped) {
      other = unit_name(run_, found->second);
    } else if (auto [place, is_new] = added_.try_emplace(tagged, name); !is_new) {
      other = place->second;
    }
    if (other.empty()) return;
    conflict_ = "the tag `" + tag + "` of `" + name + "` is already that of `" + other +
                "`: tags are unique among all calls of a task in a run";
  }
  const std::string& conflict() const { return conflict_; }

 private:
  const Run& run_;
  std::map<std::string, std::string> added_;
  std::string conflict_;
};

std::string instance_name(const std::string& map, size_t index) {
  return map + "[" + std::to_string(index + 1) + "]";
}

}  // namespace

std::string tag_conflict(const Run& run, UnitId map_unit, const std::vector<std::string>& tags) {
  TaggedNames names(run);
  std::string map = unit_name(run, map_unit);
  for (size_t i = 0; i < tags.size(); i++) names.add(instance_name(map, i), tags[i]);
  return names.conflict();
}

std::string tag_conflict(const Run& run, UnitId dynamic_unit, const PlanFragment& fragment) {
  TaggedNames names(run);
  for (const TaskNode& node : fragment.nodes) {
    const NodeDetail& detail = node.detail();
    if (detail.tag.empty() && detail.item_tags.empty()) continue;
    std::string name =
        call_name(node.name, unit_name(run, dynamic_unit), def_of(run, dynamic_unit)->name);
    names.add(name, detail.tag);
    for (size_t i = 0; i < detail.item_tags.size(); i++)
      names.add(instance_name(name, i), detail.item_tags[i]);
  }
  return names.conflict();
}

void add_tagged(Run& run, UnitId first) {
  for (UnitId unit = first; unit < run.units.size(); unit++) {
    if (run.units[unit].dropped || tag_of(run, unit).empty()) continue;
    run.tagged[shown_name(run, unit)] = unit;
  }
}

void append_nodes(Run& run, DynamicCalls& calls) {
  const PlanFragment& fragment = *calls.fragment;
  const std::string owner = unit_name(run, calls.unit);
  const std::string& task = def_of(run, calls.unit)->name;
  uint32_t offset = calls.first_unit;
  for (size_t i = 0; i < fragment.nodes.size(); i++) {
    TaskNode node = fragment.nodes[i];
    node.name = call_name(node.name, owner, task);
    for_each_value(node, [&](Value& value) { value = with_refs_moved(value, offset); });
    if (node.has_detail())
      for (uint32_t& after : node.edit_detail().after) after += offset;
    if (node.guard.when != kNoNode) node.guard.when += offset;
    mark_consumed(run, node);
    run.dynamic_nodes.push_back(std::move(node));
    run.dynamic_units.push_back(offset + static_cast<UnitId>(i));
  }
  calls.value = with_refs_moved(fragment.result, offset);
  mark_consumed(run, calls.value);
}

void mark_consumed(Run& run, const Value& value) {
  for_each_ref(value, [&](UnitId unit) { mark_unit_consumed(run, unit); });
}

void mark_consumed(Run& run, const TaskNode& node) {
  for_each_data_ref(node, [&](UnitId unit) { mark_unit_consumed(run, unit); });
  if (node.kind != NodeKind::when) return;
  mark_consumed(run, node.detail().then_value);
  mark_consumed(run, node.detail().else_value);
}

// ---- functions on a run

const std::string& tag_of(const Run& run, UnitId unit) {
  static const std::string none;
  const Unit& u = run.units[unit];
  const TaskNode& node = run.node(u.node);
  const NodeDetail& detail = node.detail();
  if (u.instance < 0) return detail.tag;
  if (!detail.item_tags.empty()) return detail.item_tags[static_cast<size_t>(u.instance)];
  if (!detail.tags_items) return none;
  auto found = run.tags.find(unit);
  return found == run.tags.end() ? none : found->second;
}

std::string shown_name(const Run& run, UnitId unit) {
  return tagged_name(unit_name(run, unit), tag_of(run, unit));
}

std::string unit_name(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  const TaskNode& node = run.node(u.node);
  if (u.instance < 0) return node.name;
  int32_t first = node.kind == NodeKind::map ? 1 : 0;  // replicas count from 0
  return node.name + "[" + std::to_string(u.instance + first) + "]";
}

const TaskDef* def_of(const Run& run, UnitId unit) {
  const TaskNode& node = run.node(run.units[unit].node);
  return node.kind == NodeKind::when ? nullptr : &run.plan->defs[node.def];
}

bool is_service(const Run& run, UnitId unit) {
  const TaskDef* def = def_of(run, unit);
  bool is_of_service = def != nullptr && def->kind == TaskKind::service;
  return is_of_service && !may_have_instances(run, unit);
}

bool is_counted(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  if (u.dropped || is_spare(run, unit)) return false;
  const TaskNode& node = run.node(u.node);
  if (node.kind == NodeKind::when) return false;
  if (u.instance >= 0 || !u.expanded) return true;
  return !may_have_instances(run, unit);  // a dynamic task
}

const std::vector<UnitId>& instances_of(const Run& run, UnitId map_unit) {
  static const std::vector<UnitId> none;
  auto found = run.instances.find(map_unit);
  return found == run.instances.end() ? none : found->second;
}

bool has_consumers(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  if (u.instance >= 0) unit = run.unit_of(u.node);
  return unit < run.is_consumed.size() && run.is_consumed[unit];
}

const Value* dynamic_value(const Run& run, UnitId unit) {
  if (!run.units[unit].expanded) return nullptr;
  auto found = run.dynamic_of.find(unit);
  return found == run.dynamic_of.end() ? nullptr : &run.dynamics[found->second].value;
}

uint32_t Run::open_units() const {
  uint32_t open = 0;
  for (size_t i = 0; i < kPhases; i++) {
    if (i != static_cast<size_t>(Phase::done)) open += phases[i];
  }
  return open;
}

AttemptId next_attempt(const State& state, const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  return {run.id, unit, u.attempts + 1, fencing_token(state.epoch, u.requeues)};
}

AttemptId current_attempt(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  return {run.id, unit, u.attempts, u.epoch};
}

}  // namespace flow::core
