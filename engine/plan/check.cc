// Edges of a plan and its validation. Nothing here recurses along edges: a chain may be a hundred
// thousand nodes long.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "engine/plan/plan.hpp"
#include "engine/plan/values.hpp"
#include "engine/plan/worker_selector.hpp"
#include "engine/plan/wrapped_server.hpp"
#include "flow/collective.hpp"

namespace flow {
namespace {

constexpr size_t kErrorsMax = 50;
constexpr size_t kTaskNameMax = 100;
constexpr size_t kNodeNameMax = 1000;  // of inlined pipelines within each other
constexpr size_t kCycleShown = 12;

void add_refs(const Value& value, std::vector<uint32_t>& out) {
  for_each_ref(value, [&](uint32_t node) { out.push_back(node); });
}

void sort_once_each(std::vector<uint32_t>& nodes) {
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
}

class PlanChecker {
 public:
  explicit PlanChecker(const Plan& plan) : plan_(plan) {}

  std::vector<Error> run() {
    limits();
    for (const TaskDef& def : plan_.defs) definition(def);
    names();
    gates();
    for (uint32_t i = 0; i < plan_.nodes.size(); i++) indices(i);
    if (!refs_within(plan_.result)) problem("the pipeline's result", "holds a handle to no node");
    // Edges are followed only if all indices are valid.
    if (errors_.empty()) cycles();
    return std::move(errors_);
  }

 private:
  void problem(const std::string& what, std::string why) {
    if (errors_.size() < kErrorsMax) errors_.push_back(user_error(what + " " + std::move(why)));
  }

  std::string where(const TaskDef& def) const {
    return fmt::format("{}:{}: task `{}`", def.file, def.line, def.name);
  }
  std::string where(const TaskNode& node) const {
    if (node.def < plan_.defs.size() && node.kind != NodeKind::when)
      return fmt::format("{}:{}: `{}`", plan_.defs[node.def].file, node.line, node.name);
    return fmt::format("line {}: `{}`", node.line, node.name);
  }

  void limits() {
    if (plan_.nodes.size() > kNodesMax)
      problem(fmt::format("pipeline `{}`", plan_.pipeline),
              fmt::format("has {} nodes, and a plan holds {} at most: use flow.map, or split it",
                          plan_.nodes.size(), kNodesMax));
  }

  // ---- definitions

  void definition(const TaskDef& def) {
    constexpr std::string_view kLetters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    if (def.name.empty() || def.name.size() > kTaskNameMax ||
        def.name.find_first_not_of(kLetters) != std::string::npos || def.name == "." ||
        def.name == "..")
      problem(where(def),
              fmt::format("has a name that is not valid: a name is 1 to {} letters, digits, `_`, "
                          "`.` and `-`, but not `.` or `..`",
                          kTaskNameMax));
    const Resources& needs = def.resources;
    if (needs.cpus_milli <= 0) problem(where(def), "asks for no CPU: `cpus` is above 0");
    if (needs.memory_bytes < 0 || needs.gpu_memory_bytes < 0 || needs.gpus_milli < 0)
      problem(where(def), "asks for a negative amount: memory and GPUs are 0 or more");
    if (!are_sound(needs.custom_resources))
      problem(where(def),
              fmt::format("has `resources` that are not valid: each has {}, and there are at "
                          "most {}",
                          kCustomResourceNameForm, kCustomResourcesMax));
    bool is_single = def.kind == TaskKind::native || def.kind == TaskKind::service ||
                     def.kind == TaskKind::dynamic;
    if (needs.is_gang() && is_single)
      problem(where(def),
              "asks for several ranks: a service, a dynamic and a native task have one");
    if (!needs.where.empty()) placement(def);
    if (needs.ranks < 1 || needs.ranks > kRanksMax)
      problem(where(def),
              fmt::format("asks for {} ranks: `ranks` is 1 to {}", needs.ranks, kRanksMax));
    if (needs.ranks_max != 0 && (needs.ranks_max < needs.ranks || needs.ranks_max > kRanksMax))
      problem(where(def), fmt::format("asks for at most {} ranks: `ranks.max` is {} to {}",
                                      needs.ranks_max, needs.ranks, kRanksMax));
    if (!def.shell.environment.is_empty()) environment(def);
    if (def.timeout_ms < 0) problem(where(def), "has a negative `timeout`");
    if (def.retry.backoff_ms < 0 || def.retry.cap_ms < 0)
      problem(where(def), "has a negative `backoff` or `cap` in `retries`");
    if (!(def.retry.factor >= 1) || !(def.retry.oom_memory_factor >= 1))
      problem(where(def),
              "has a factor below 1 in `retries`: each wait, or the memory of each "
              "attempt, can only grow");
    if (def.kind == TaskKind::service) service(def);
    bool grows = (def.resource_functions & kMemoryFunction) != 0 &&
                 def.retry.oom_memory_factor != RetryPolicy().oom_memory_factor;
    if (grows)
      problem(where(def),
              "has a function for `memory`, so `retries.oom.memory` has no effect: the function "
              "gets the attempt's number as its second argument");
    bool may_have_gpus = needs.gpus_milli > 0 || (def.resource_functions & kGpusFunction) != 0;
    if (!def.gpu_kernel.empty() && !may_have_gpus)
      problem(where(def),
              fmt::format("has the kernel `{}`, which needs a GPU, and asks for none: write "
                          "`gpus = 1` in its options, or give the kernel a `fallback`, a function "
                          "that does the same on the CPU",
                          def.gpu_kernel));
  }

  void environment(const TaskDef& def) {
    const CommandEnvironment& environment = def.shell.environment;
    if (def.kind != TaskKind::shell && def.shell.command.empty())
      problem(where(def),
              "runs no command: only tasks with one have `before`, `modules`, `venv`, `conda` and "
              "`container`");
    bool is_of_machine = !environment.modules.empty() || !environment.venv.source.empty() ||
                         !environment.conda.source.empty();
    if (!environment.container.empty() && is_of_machine)
      problem(where(def),
              "has `container` and also `modules`, `venv` or `conda`, which are of the machine and "
              "do not exist in a container: install what it needs in the image");
  }

  void service(const TaskDef& def) {
    std::string why = service_problem(def.service);
    if (why.empty()) why = wrapped_server_problem(def.service, !def.shell.command.empty());
    if (!why.empty()) problem(where(def), std::move(why));
    if (!def.service.canary.gate.empty()) gate(def);
  }

  void gate(const TaskDef& def) {
    const std::string& name = def.service.canary.gate;
    std::string subject = fmt::format("has a `canary` with the gate `{}`, ", name);
    auto is_it = [&](const TaskDef& other) { return other.name == name; };
    auto count = std::ranges::count_if(plan_.defs, is_it);
    if (count == 0) return problem(where(def), subject + "which is no task of the script");
    if (count > 1)
      return problem(where(def), subject + fmt::format("and there are {} tasks of that name, or "
                                                       "some made with `with`: give the gate a "
                                                       "name of its own",
                                                       count));
    const TaskDef& task = *std::ranges::find_if(plan_.defs, is_it);
    if (task.kind != TaskKind::lua && task.kind != TaskKind::native)
      return problem(where(def), subject + "which can't return true: write a task of `flow.task`");
    constexpr size_t kContextAndTable = 2;
    if (task.parameters.size() > kContextAndTable)
      problem(where(def),
              subject + fmt::format("which takes {} arguments: a gate is called with one table, "
                                    "{{ version, step, requests, errors, p50, p99 }}",
                                    task.parameters.size() - 1));
  }

  // One decision is made for all services of a run.
  void gates() {
    const TaskDef* first = nullptr;
    for (const TaskNode& node : plan_.nodes) {
      if (node.kind == NodeKind::when || node.def >= plan_.defs.size()) continue;
      const TaskDef& def = plan_.defs[node.def];
      if (def.kind != TaskKind::service || def.service.canary.gate.empty()) continue;
      if (first == nullptr) first = &def;
      if (def.service.canary.gate == first->service.canary.gate) continue;
      return problem(where(def),
                     fmt::format("has a `canary` with the gate `{}`, and `{}` has `{}`: one gate "
                                 "decides for all services of a run",
                                 def.service.canary.gate, first->name, first->service.canary.gate));
    }
  }

  void placement(const TaskDef& def) {
    const std::string& text = def.resources.where;
    if (auto parsed = WorkerSelector::parse(text); !parsed.ok())
      problem(where(def), fmt::format("has `where = \"{}\"`, which {}: write for example "
                                      "\"disk == ssd and not shared\"",
                                      text, parsed.error().message));
    if (def.kind == TaskKind::native)
      problem(where(def),
              "has `where`: a native task runs only on the engine's own machine; remove it");
  }

  // ---- names

  void names() {
    std::unordered_map<std::string_view, uint32_t> first;
    first.reserve(plan_.nodes.size());
    for (uint32_t i = 0; i < plan_.nodes.size(); i++) {
      const TaskNode& node = plan_.nodes[i];
      if (node.name.empty() || node.name.size() > kNodeNameMax)
        problem(where(node), fmt::format("has a name of {} bytes: 1 to {} are allowed",
                                         node.name.size(), kNodeNameMax));
      auto [other, is_first] = first.emplace(node.name, i);
      if (!is_first)
        problem(where(node), fmt::format("has the name of another node, made at line {}: names "
                                         "are unique within a run",
                                         plan_.nodes[other->second].line));
    }
  }

  // ---- indices

  bool within(uint32_t node) const { return node < plan_.nodes.size(); }

  bool refs_within(const Value& value) const {
    bool all = true;
    for_each_ref(value, [&](uint32_t node) { all = all && within(node); });
    return all;
  }

  void indices(uint32_t index) {
    const TaskNode& node = plan_.nodes[index];
    if (node.kind != NodeKind::when && node.def >= plan_.defs.size()) {
      problem(where(node),
              fmt::format("is a call of task {}, and there are {}", node.def, plan_.defs.size()));
    } else if (node.kind == NodeKind::map) {
      map_of_service(node);
    }
    for_each_value(node, [&](const Value& value) {
      if (!refs_within(value)) problem(where(node), "takes a handle to no node");
    });
    for (uint32_t before : node.detail().after)
      if (!within(before)) problem(where(node), "comes after no node");
    if (node.guard.when == kNoNode) return;
    if (!within(node.guard.when) || plan_.nodes[node.guard.when].kind != NodeKind::when)
      problem(where(node), "is in the branch of a node that is not a flow.when");
  }

  void map_of_service(const TaskNode& node) {
    const TaskDef& def = plan_.defs[node.def];
    uint32_t replicas = std::max(def.service.replicas, def.service.scaling.max);
    if (def.kind != TaskKind::service || replicas <= 1) return;
    problem(where(node),
            fmt::format("is a flow.map of a service with `replicas{} = {}`: a service is called "
                        "once, and its replicas answer the same requests; call it without flow.map",
                        def.service.scaling.max > 0 ? ".max" : "", replicas));
  }

  // ---- cycles

  // A when is two vertices: the choice (i) and the join of the branch's value (n + i). Branches
  // start after the choice; dependents of the when wait for the join.
  size_t joined(uint32_t node) const {
    return plan_.nodes[node].kind == NodeKind::when ? plan_.nodes.size() + node : node;
  }

  std::vector<size_t> needs_of(size_t vertex) {
    size_t count = plan_.nodes.size();
    bool is_join = vertex >= count;
    const TaskNode& node = plan_.nodes[is_join ? vertex - count : vertex];
    scratch_.clear();
    std::vector<size_t> needs;
    if (is_join) {
      needs.push_back(vertex - count);
      add_refs(node.detail().then_value, scratch_);
      add_refs(node.detail().else_value, scratch_);
    } else {
      if (node.guard.when != kNoNode) needs.push_back(node.guard.when);
      for_each_data_ref(node, [&](uint32_t other) { scratch_.push_back(other); });
      scratch_.insert(scratch_.end(), node.detail().after.begin(), node.detail().after.end());
    }
    for (uint32_t other : scratch_) needs.push_back(joined(other));
    return needs;
  }

  /// Whether every edge goes to an earlier node, as in most plans: then there is no cycle.
  bool in_order() const {
    for (uint32_t i = 0; i < plan_.nodes.size(); i++) {
      const TaskNode& node = plan_.nodes[i];
      if (node.kind == NodeKind::when) return false;
      bool all = true;
      auto check_node = [&](uint32_t other) { all = all && other < i; };
      for_each_data_ref(node, check_node);
      std::for_each(node.detail().after.begin(), node.detail().after.end(), check_node);
      if (!all) return false;
    }
    return true;
  }

  void cycles() {
    if (in_order()) return;
    enum Mark : uint8_t { kNew, kOpen, kDone };
    struct Step {
      size_t vertex;
      std::vector<size_t> needs;
      size_t next = 0;
    };
    std::vector<uint8_t> marks(2 * plan_.nodes.size(), kNew);
    std::vector<Step> path;
    for (uint32_t start = 0; start < plan_.nodes.size(); start++) {
      size_t root = joined(start);
      if (marks[root] != kNew) continue;
      marks[root] = kOpen;
      path.push_back({root, needs_of(root)});
      while (!path.empty()) {
        Step& step = path.back();
        if (step.next == step.needs.size()) {
          marks[step.vertex] = kDone;
          path.pop_back();
          continue;
        }
        size_t need = step.needs[step.next++];
        if (marks[need] == kDone) continue;
        if (marks[need] == kOpen) {
          size_t first = path.size();
          while (path[--first].vertex != need) {
          }
          std::vector<size_t> cycle;
          for (size_t i = first; i < path.size(); i++) cycle.push_back(path[i].vertex);
          return report_cycle(cycle);
        }
        marks[need] = kOpen;
        path.push_back({need, needs_of(need)});
      }
    }
  }

  void report_cycle(const std::vector<size_t>& cycle) {
    std::vector<std::string> names;
    for (size_t vertex : cycle) {
      const std::string& name = plan_.nodes[vertex % plan_.nodes.size()].name;
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    if (names.size() > 1 && names.front() == names.back()) names.pop_back();
    const TaskNode& node = plan_.nodes[cycle.front() % plan_.nodes.size()];
    if (names.size() == 1) return problem(where(node), "waits for itself: remove that edge");
    std::string text;
    for (size_t i = 0; i < names.size() && i < kCycleShown; i++)
      text += fmt::format("`{}` waits for ", names[i]);
    if (names.size() > kCycleShown) text += fmt::format("… ({} more) ", names.size() - kCycleShown);
    problem(where(node), fmt::format("is part of a cycle, so none of it could ever start: {}`{}`. "
                                     "Remove one of these edges, most likely an `:after`",
                                     text, names.front()));
  }

  const Plan& plan_;
  std::vector<Error> errors_;
  std::vector<uint32_t> scratch_;
};

}  // namespace

std::vector<uint32_t> refs_of(const Value& value) {
  std::vector<uint32_t> nodes;
  add_refs(value, nodes);
  sort_once_each(nodes);
  return nodes;
}

std::vector<uint32_t> data_dependencies(const TaskNode& node) {
  std::vector<uint32_t> nodes;
  for_each_data_ref(node, [&](uint32_t other) { nodes.push_back(other); });
  sort_once_each(nodes);
  return nodes;
}

std::vector<Error> check_plan(const Plan& plan) { return PlanChecker(plan).run(); }

}  // namespace flow
