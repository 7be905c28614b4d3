// The scenario runner.
#include "tests/core/scenario.hpp"

#include <algorithm>
#include <sstream>

#include "engine/core/gangs.hpp"
#include "engine/core/rollover.hpp"
#include "engine/sched/sched.hpp"
#include "tests/core/dump.hpp"

namespace flow::core {

namespace {

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::string part;
  std::istringstream in(text);
  while (std::getline(in, part, by)) parts.push_back(part);
  return parts;
}

std::string trimmed(const std::string& text) {
  size_t from = text.find_first_not_of(" \t");
  if (from == std::string::npos) return "";
  return text.substr(from, text.find_last_not_of(" \t") - from + 1);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ",") + word;
  return all;
}

std::string option(const std::vector<std::string>& words, const std::string& name) {
  for (const std::string& word : words) {
    if (word.rfind(name + "=", 0) == 0) return word.substr(name.size() + 1);
  }
  return "";
}

int64_t number(const std::vector<std::string>& words, const std::string& name, int64_t otherwise) {
  std::string text = option(words, name);
  return text.empty() ? otherwise : std::stoll(text);
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

uint32_t index_of(const std::vector<TaskNode>& nodes, const std::string& name) {
  for (uint32_t i = 0; i < nodes.size(); i++) {
    if (nodes[i].name == name) return i;
  }
  return kNoNode;
}

/// A reference to the node of that name, or the name as a string.
Value value_of(const std::vector<TaskNode>& nodes, const std::string& name) {
  uint32_t node = index_of(nodes, name);
  return node == kNoNode ? Value(name) : Value(Ref{node, {}});
}

Value list_of(const std::vector<TaskNode>& nodes, const std::string& names) {
  std::vector<Value> items;
  for (const std::string& name : split(names, ',')) items.push_back(value_of(nodes, name));
  return Value::list(std::move(items));
}

const std::map<std::string, Cause>& causes() {
  static const std::map<std::string, Cause> all = [] {
    std::map<std::string, Cause> named;
    for (int i = 0; i <= int(kCauseLast); i++) named[cause_name(Cause(i))] = Cause(i);
    return named;
  }();
  return all;
}

std::vector<Gpu> gpus_of_words(const std::vector<std::string>& words) {
  std::vector<Gpu> gpus;
  for (const std::string& each : words) {
    std::vector<std::string> parts = split(each, ':');
    Gpu gpu;
    gpu.index = uint32_t(gpus.size());
    gpu.uuid = parts.at(0);
    gpu.name = parts.at(1);
    gpu.memory_bytes = std::stoll(parts.at(2));
    gpu.is_mig = parts.size() > 3 && parts[3] == "mig";
    if (parts.size() > 3 && !gpu.is_mig) gpu.fault = parts[3];
    gpu.is_dead = parts.size() > 4;
    gpus.push_back(gpu);
  }
  return gpus;
}

/// "labels=rack:a,zone:b"
std::vector<std::pair<std::string, std::string>> labels_of(const std::vector<std::string>& words) {
  std::vector<std::pair<std::string, std::string>> labels;
  for (const std::string& label : split(option(words, "labels"), ',')) {
    std::vector<std::string> parts = split(label, ':');
    labels.emplace_back(parts.at(0), parts.at(1));
  }
  return labels;
}

/// "resources=fpga:2000,licence:500", in thousandths
ResourceQuantities custom_resources_of(const std::vector<std::string>& words) {
  ResourceQuantities named;
  for (const std::string& each : split(option(words, "resources"), ',')) {
    std::vector<std::string> parts = split(each, ':');
    named.emplace_back(parts.at(0), std::stoll(parts.at(1)));
  }
  return named;
}

}  // namespace

std::string Scenario::play(const std::string& text) {
  int number = 0;
  for (std::string raw : split(text, '\n')) {
    number++;
    size_t comment = raw.rfind('#', 0) == 0 ? 0 : raw.find(" #");
    raw = trimmed(raw.substr(0, comment));
    if (raw.empty()) continue;
    std::string problem = line(raw);
    if (!problem.empty()) return "line " + std::to_string(number) + ": " + raw + "\n  " + problem;
  }
  State again;
  std::vector<Command> dropped;
  for (const Record& record : records_) apply(again, record, dropped);
  if (dump(again) != dump(state_)) return "a replay has another state";
  if (dump(restored(state_)) != dump(state_)) return "a snapshot has another state";
  return "";
}

std::string Scenario::line(const std::string& text) {
  size_t arrow = text.find("->");
  std::string head = trimmed(text.substr(0, arrow));
  std::string tail = arrow == std::string::npos ? "" : trimmed(text.substr(arrow + 2));
  Words words = words_of(head);
  if (words[0] == "def" || words[0] == "node" || words[0] == "result" || words[0] == "calls" ||
      words[0] == "end") {
    return declare(words);
  }
  if (words[0] == "at") {
    now_ = std::stoll(words[1]);
    return "";
  }
  if (words[0] == "run") {
    run_ = words[1];
    return "";
  }
  if (words[0] == "is" || words[0] == "status" || words[0] == "counts" || words[0] == "why" ||
      words[0] == "error" || words[0] == "restarts" || words[0] == "rollover") {
    return check(words, head);
  }
  if (words[0] == "schedule" || words[0] == "go") return proposals(words, tail);
  if (words[0] == "scale_up") return scale_up(words, tail);
  bool refused = words[0] == "refused";
  if (refused) words.erase(words.begin());
  Event event;
  if (!parse(words, event)) return "no such event";
  if (admit(state_, event) == refused) return refused ? "was admitted" : "was refused";
  if (refused) return "";
  std::vector<std::string> printed;
  std::string problem = step(event, printed);
  if (!problem.empty()) return problem;
  std::string all;
  for (const std::string& one : printed) all += (all.empty() ? "" : "; ") + one;
  return all == tail ? "" : "came out: " + all;
}

std::string Scenario::declare(const Words& words) {
  if (words[0] == "calls") {
    auto fragment = std::make_shared<PlanFragment>();
    calls_[words[1]] = fragment;
    nodes_ = &fragment->nodes;
    result_ = &fragment->result;
    return "";
  }
  if (words[0] == "end") {
    nodes_ = &plan_->nodes;
    result_ = &plan_->result;
    return "";
  }
  if (words[0] == "result") {
    *result_ = list_of(*nodes_, words[1]);
    return "";
  }
  if (words[0] == "def") {
    TaskDef def;
    def.name = words[1];
    std::string kind = option(words, "kind");
    if (kind == "shell") def.kind = TaskKind::shell;
    if (kind == "dynamic") def.kind = TaskKind::dynamic;
    if (kind == "service") def.kind = TaskKind::service;
    if (kind == "native") def.kind = TaskKind::native;
    def.service.replicas = uint32_t(number(words, "replicas", 1));
    def.service.scaling.max = uint32_t(number(words, "max", 0));
    def.retry.max = uint32_t(number(words, "retries", 0));
    def.retry.backoff_ms = number(words, "backoff", 0);
    def.retry.cap_ms = number(words, "cap", 60'000);
    def.retry.factor = double(number(words, "factor", 2));
    def.retry.oom_max = uint32_t(number(words, "oom", 0));
    def.retry.infra = uint32_t(number(words, "infra", 5));
    def.resources.cpus_milli = int32_t(number(words, "cpus", 1000));
    def.resources.memory_bytes = number(words, "memory", 0);
    def.resources.gpus_milli = int32_t(number(words, "gpus", 0));
    def.resources.gpu_model = option(words, "gpu");
    def.resources.gpu_memory_bytes = number(words, "gpu_memory", 0);
    def.resources.ranks = uint32_t(number(words, "ranks", 1));
    def.resources.ranks_max = uint32_t(number(words, "ranks_max", 0));
    def.resources.where = option(words, "where");
    def.resources.custom_resources = custom_resources_of(words);
    def.priority = int32_t(number(words, "priority", 0));
    def.cache = option(words, "cache") != "no";
    def.ignores_failure = has(words, "ignore");
    for (const std::string& name : split(option(words, "functions"), ','))
      def.resource_functions |= name == "memory" ? kMemoryFunction : kCpusFunction;
    for (const std::string& percent : split(option(words, "canary"), ','))
      def.service.canary.percents.push_back(uint32_t(std::stoul(percent)));
    def.service.canary.every_ms = number(words, "every", 60'000);
    def.service.canary.min_requests = uint32_t(number(words, "min", 20));
    def.service.canary.max_p99_us = number(words, "max_p99", 0);
    std::string max_errors = option(words, "max_errors");
    if (!max_errors.empty()) def.service.canary.max_error_rate = std::stod(max_errors);
    def.service.canary.gate = option(words, "gate");
    def.service.rolls_by_replacing = has(words, "replace");
    if (def.kind == TaskKind::shell && !has(words, "effect")) def.shell.outputs = {{"out", "out"}};
    plan_->defs.push_back(def);
    return "";
  }
  TaskNode node;
  node.name = words[1];
  std::string when = option(words, "when");
  if (!when.empty()) {
    node.kind = NodeKind::when;
    node.edit_detail().condition = value_of(*nodes_, when);
    // A branch may return nodes that are declared after the when.
    node.edit_detail().then_value = Value(option(words, "then"));
    node.edit_detail().else_value = Value(option(words, "else"));
  } else {
    auto def = std::find_if(plan_->defs.begin(), plan_->defs.end(),
                            [&](const TaskDef& d) { return d.name == words[2]; });
    if (def == plan_->defs.end()) return "no such def";
    node.def = uint32_t(def - plan_->defs.begin());
    node.args = list_of(*nodes_, option(words, "args"));
  }
  for (const std::string& word : words) {
    if (word.rfind("items=", 0) == 0) {
      node.kind = NodeKind::map;
      node.edit_detail().items = list_of(*nodes_, word.substr(6));
    }
    if (word.rfind("list=", 0) == 0) {
      node.kind = NodeKind::map;
      node.edit_detail().items = value_of(*nodes_, word.substr(5));
    }
  }
  node.edit_detail().limit = uint32_t(number(words, "limit", 0));
  node.edit_detail().tag = option(words, "tag");
  node.edit_detail().item_tags = split(option(words, "item_tags"), ',');
  node.edit_detail().tags_items = has(words, "tags_items");
  for (const std::string& name : split(option(words, "after"), ',')) {
    node.edit_detail().after.push_back(index_of(*nodes_, name));
  }
  std::vector<std::string> guard = split(option(words, "in"), ':');
  if (guard.size() == 2) node.guard = {index_of(*nodes_, guard[0]), guard[1] == "then"};
  nodes_->push_back(std::move(node));
  for (TaskNode& other : *nodes_) {
    if (other.kind != NodeKind::when) continue;
    for (Value* value : {&other.edit_detail().then_value, &other.edit_detail().else_value}) {
      if (value->kind() == Value::Kind::string) *value = value_of(*nodes_, value->as_string());
    }
  }
  return "";
}

UnitId Scenario::unit(const std::string& name) const {
  auto found = state_.runs.find(run_);
  if (found == state_.runs.end()) return 0;
  const Run& run = found->second;
  UnitId last = kNoNode;
  for (UnitId u = 0; u < run.units.size(); u++) {
    if (!run.units[u].dropped && unit_name(run, u) == name) last = u;
  }
  return last;
}

// "a", its current attempt; "a@2", "a@2!5" with the fencing token; "RUN:UNIT" of another run.
AttemptId Scenario::attempt(const std::string& name) const {
  if (size_t colon = name.find(':'); colon != std::string::npos)
    return {name.substr(0, colon), uint32_t(std::stoul(name.substr(colon + 1))), 1, 1};
  size_t at = name.find('@');
  size_t bang = name.find('!');
  UnitId u = unit(name.substr(0, at));
  auto found = state_.runs.find(run_);
  if (found == state_.runs.end() || u == kNoNode) return {run_, kNoNode, 0, 0};
  AttemptId id = current_attempt(found->second, u);
  if (at != std::string::npos) id.attempt = uint32_t(std::stoul(name.substr(at + 1)));
  if (bang != std::string::npos) id.epoch = std::stoull(name.substr(bang + 1));
  return id;
}

WorkerId Scenario::worker(const std::string& name) const {
  for (size_t i = 0; i < state_.workers.size(); i++)
    if (state_.workers[i].info.name == name) return WorkerId(i);
  return WorkerId(kWorkersMax);  // none
}

/// "w1,w1:A+B,.": one entry per rank, "." is the engine's own machine.
void Scenario::place_ranks(const Words& ranks, Assigned& gang) const {
  SchedulingClass request = resource_request(state_, state_.runs.at(gang.id.run), gang.id.unit);
  gang.share = {request.cpus_milli, request.memory_bytes};
  for (size_t i = 0; i < ranks.size(); i++) {
    std::vector<std::string> parts = split(ranks[i], ':');
    Placement rank{worker(parts[0] == "." ? "" : parts[0])};
    if (parts.size() > 1) rank.gpus = split(parts[1], '+');
    if (i > 0) {
      gang.others.push_back(rank);
    } else {
      gang.worker = rank.worker;
      gang.gpus = rank.gpus;
    }
  }
}

std::string Scenario::rank_text(WorkerId at, const std::vector<std::string>& gpus) const {
  std::string text = at == 0 ? "." : state_.workers[at].info.name;
  for (size_t i = 0; i < gpus.size(); i++) text += (i == 0 ? ":" : "+") + gpus[i];
  return text;
}

bool Scenario::parse(const Words& words, Event& event) {
  const std::string& verb = words[0];
  auto word = [&](size_t i) { return i < words.size() ? words[i] : std::string(); };
  UnitId named = word(1).empty() ? 0 : unit(word(1));
  if (verb == "engine") {
    event = EngineStarted{std::stoull(word(1)),          int32_t(number(words, "cpus", 1) * 1000),
                          number(words, "memory", 1000), custom_resources_of(words),
                          has(words, "leads"),           !has(words, "older")};
  } else if (verb == "submit") {
    RunSubmitted e;
    e.run = run_ = word(1);
    e.plan = std::make_shared<const Plan>(*plan_);
    e.jobs = int32_t(number(words, "jobs", 0));
    e.fail_fast = has(words, "fail_fast");
    e.fresh = has(words, "fresh");
    e.name = option(words, "name");
    event = e;
  } else if (verb == "key") {
    InputsResolved e{run_, named, sha256(word(2)), false, {}, nullptr, {}};
    std::string hit = option(words, "hit");
    e.hit = !hit.empty();
    if (e.hit) e.result = sha256(hit);
    std::string calls = option(words, "calls");
    if (!calls.empty()) e.fragment = calls_.at(calls);
    event = e;
  } else if (verb == "badinput") {
    event = InputsFailed{run_, named, {Cause::user_error, word(2), "", 0}};
  } else if (verb == "size") {
    const Run& run = state_.runs.at(run_);
    const TaskDef& def = *def_of(run, named);
    AttemptResources computed{next_attempt(state_, run, named).attempt, def.resources,
                              def.timeout_ms};
    computed.attempt = uint32_t(number(words, "attempt", computed.attempt));
    computed.resources.memory_bytes = number(words, "memory", def.resources.memory_bytes);
    computed.resources.cpus_milli = int32_t(number(words, "cpus", def.resources.cpus_milli));
    event = ResourcesComputed{run_, named, computed};
  } else if (verb == "missing") {
    event = InputsMissing{run_, named, word(2)};
  } else if (verb == "count") {
    event =
        MapExpanded{run_, named, uint32_t(std::stoul(word(2))), split(option(words, "tags"), ',')};
  } else if (verb == "branch") {
    event = WhenResolved{run_, named, word(2) == "then"};
  } else if (verb == "value") {
    event = ValueGathered{run_, word(1) == "result" ? kNoNode : named, sha256(word(2))};
  } else if (verb == "assign") {
    Assigned e{next_attempt(state_, state_.runs.at(run_), named), split(option(words, "on"), ','),
               worker(option(words, "at"))};
    if (!option(words, "ranks").empty()) place_ranks(split(option(words, "ranks"), ','), e);
    event = std::move(e);
  } else if (verb == "gpus") {
    bool is_of_worker = words.back().starts_with("at=");
    event = GpusFound{gpus_of_words({words.begin() + 1, words.end() - is_of_worker}),
                      is_of_worker ? worker(option(words, "at")) : WorkerId{0}};
  } else if (verb == "gpu") {
    event = GpuFailed{worker(option(words, "at")), word(1), word(2), has(words, "dead")};
  } else if (verb == "join") {
    WorkerJoined e{{word(1), int32_t(number(words, "cpus", 1) * 1000),
                    number(words, "memory", 1000), gpus_of_words(split(option(words, "gpus"), ',')),
                    labels_of(words), custom_resources_of(words)}};
    for (const std::string& offer : split(option(words, "with"), ','))
      e.attempts.push_back(attempt(offer));
    e.is_restarted = has(words, "restarted");
    event = std::move(e);
  } else if (verb == "disconnect") {
    event = WorkerDisconnected{worker(word(1)), word(2)};
  } else if (verb == "drain") {
    event = WorkerDraining{worker(word(1)), word(2)};
  } else if (verb == "lost") {
    event = WorkerLost{worker(word(1)), word(2), has(words, "died")};
  } else if (verb == "announce") {
    event = WorkersAnnounced{uint32_t(std::stoul(word(1)))};
  } else if (verb == "workertimer") {
    event = TimerFired{"", worker(word(1)), uint32_t(std::stoul(word(2)))};
  } else if (verb == "signal") {
    event = SignalReceived{run_, word(1), sha256(word(2))};
  } else if (verb == "timer") {
    event = TimerFired{run_, named, uint32_t(std::stoul(word(2)))};
  } else if (verb == "rollovertimer") {
    event = TimerFired{run_, kNoNode, uint32_t(std::stoul(word(1)))};
  } else if (verb == "shifted") {
    event = TrafficShifted{run_, uint32_t(std::stoul(word(1))), word(2)};
  } else if (verb == "measured") {
    TrafficMeasured e{run_,
                      uint32_t(std::stoul(word(1))),
                      uint64_t(number(words, "requests", 0)),
                      uint64_t(number(words, "errors", 0)),
                      0,
                      number(words, "p99", 0)};
    e.error = option(words, "error");
    event = std::move(e);
  } else if (verb == "gated") {
    GateCalled e{run_, uint32_t(std::stoul(word(1))), nullptr, {}};
    auto call = next_gate_call(state_.runs.at(run_));
    auto fragment = std::make_shared<PlanFragment>();
    fragment->nodes.resize(1);
    fragment->nodes[0].name = call ? call->name : "";
    fragment->nodes[0].def = call ? call->def : 0;
    fragment->nodes[0].args = Value::list({Value(int64_t{e.step})});
    fragment->result = Value(Ref{0, {}});
    e.fragment = std::move(fragment);
    event = std::move(e);
  } else if (verb == "answered") {
    event = GateAnswered{run_, uint32_t(std::stoul(word(1))), word(2) == "true",
                         word(2) == "true" ? "" : "it said " + word(2)};
  } else if (verb == "scaled") {
    event = ReplicasScaled{run_, named, uint32_t(std::stoul(word(2)))};
  } else if (verb == "cancel") {
    event = CancelRequested{run_};
  } else if (verb == "stop") {
    event = StopRequested{run_};
  } else if (verb == "endserve") {
    event = ServeEnded{run_};
  } else if (verb == "retry") {
    RetryRequested e{run_, false, 0};
    std::vector<std::string> lost = split(option(words, "lost"), ',');
    for (const std::string& name : lost) e.lost.push_back(unit(name));
    e.has_unit = words.size() > 1 && lost.empty();
    if (e.has_unit) e.unit = named;
    event = e;
  } else if (verb == "delete") {
    event = RunDeleted{run_};
  } else {
    return parse_attempt(words, event);
  }
  return true;
}

bool Scenario::parse_attempt(const Words& words, Event& event) {
  if (words.size() < 2) return false;
  const std::string& verb = words[0];
  AttemptId id = attempt(words[1]);
  std::string third = words.size() > 2 ? words[2] : "";
  if (verb == "requeued") {
    event = AttemptRequeued{id};
  } else if (verb == "done") {
    AttemptSucceeded e{id, sha256(third), nullptr, {}, number(words, "us", 0)};
    std::string calls = option(words, "calls");
    if (!calls.empty()) e.fragment = calls_.at(calls);
    e.waited = number(words, "waited", 0) != 0;
    event = e;
  } else if (verb == "fail") {
    event = AttemptFailed{
        id,
        {causes().at(third), "broken", "", third == "staging" ? has(words, "gone") : 1},
        uint32_t(number(words, "rank", 0)),
        has(words, "died")};
  } else if (verb == "wait") {
    event = AttemptWaiting{id, third, third, number(words, "deadline", 0)};
  } else if (verb == "stopped") {
    event = AttemptStopped{id};
  } else if (verb == "serving") {
    event = ServiceReady{id, third};
  } else if (verb == "step") {
    event = StepSaved{id, third, sha256(third)};
  } else if (verb == "checkpoint") {
    event = CheckpointSaved{id, sha256("state")};
  } else {
    return false;
  }
  return true;
}

std::string Scenario::step(const Event& event, std::vector<std::string>& printed) {
  std::vector<Command> out;
  records_.push_back({state_.sequence + 1, now_, event});
  apply(state_, records_.back(), out);
  for (const Command& command : out) {
    const auto* several = std::get_if<ResolveInputs>(&command);
    if (several == nullptr) printed.push_back(text_of(command));
    for (uint32_t i = 0; several != nullptr && i < several->count; i++)
      printed.push_back(text_of(ResolveInputs{several->run, several->unit + i}));
  }
  return check_invariants(state_);
}

std::string Scenario::in_run(const RunId& run) const { return run == run_ ? "" : run + ":"; }

std::string Scenario::text_of(const AttemptId& id) const {
  auto found = state_.runs.find(id.run);
  bool is_known = found != state_.runs.end() && id.unit < found->second.units.size();
  std::string name = is_known ? unit_name(found->second, id.unit) : std::to_string(id.unit);
  return in_run(id.run) + name + "@" + std::to_string(id.attempt);
}

std::string Scenario::text_of(const Command& command) const {
  auto name = [&](const RunId& run, UnitId u) {
    return in_run(run) + (u == kNoNode ? "result" : unit_name(state_.runs.at(run), u));
  };
  if (auto* c = std::get_if<ResolveInputs>(&command)) return "resolve " + name(c->run, c->unit);
  if (auto* c = std::get_if<ExpandMap>(&command)) return "expand " + name(c->run, c->unit);
  if (auto* c = std::get_if<ResolveWhen>(&command)) return "decide " + name(c->run, c->unit);
  if (auto* c = std::get_if<GatherValue>(&command)) return "gather " + name(c->run, c->unit);
  if (auto* c = std::get_if<ComputeResources>(&command)) return "size " + name(c->run, c->unit);
  if (auto* c = std::get_if<StartAttempt>(&command)) return "start " + text_of(c->id);
  if (auto* c = std::get_if<StopAttempt>(&command)) {
    std::string at = c->worker > 0 ? " at " + state_.workers[c->worker].info.name : "";
    return (c->kill ? "kill " : "stop ") + text_of(c->id) + at;
  }
  if (auto* c = std::get_if<AckSaved>(&command))
    return trimmed("ack " + text_of(c->id) + " " + c->name);
  if (auto* c = std::get_if<SetTimer>(&command)) {
    std::string of =
        c->run.empty() ? "worker " + state_.workers[c->unit].info.name : name(c->run, c->unit);
    return "timer " + of + " " + std::to_string(c->serial) + " at " + std::to_string(c->at);
  }
  if (auto* c = std::get_if<RunChanged>(&command)) {
    return in_run(c->run) + "run " + status_name(state_.runs.at(c->run).status);
  }
  if (auto* c = std::get_if<UnitChanged>(&command)) {
    return name(c->run, c->unit) + " " + status_name(state_.runs.at(c->run).units[c->unit].status);
  }
  if (auto* c = std::get_if<ShiftTraffic>(&command))
    return in_run(c->run) + "shift " + std::to_string(c->percent) + "%" +
           (c->previous.empty() ? "" : " from " + c->previous) + " step " + std::to_string(c->step);
  if (auto* c = std::get_if<MeasureTraffic>(&command))
    return in_run(c->run) + "measure step " + std::to_string(c->step);
  if (auto* c = std::get_if<CallGate>(&command))
    return in_run(c->run) + "gate step " + std::to_string(c->step);
  if (auto* c = std::get_if<ReadGate>(&command))
    return name(c->run, c->unit) + " read gate step " + std::to_string(c->step);
  return in_run(std::get<RunEnded>(command).run) + "ended";
}

std::string Scenario::proposals(const Words& words, const std::string& expected) {
  std::string all;
  std::vector<std::string> printed;
  for (const Event& event : schedule(state_, 1000)) {
    const AttemptId& id = std::get<Assigned>(event).id;
    if (words[0] == "schedule") {
      all += (all.empty() ? "" : ", ") + text_of(id);
      const auto& given = std::get<Assigned>(event);
      if (given.share != Share{}) {
        all += " ranks " + rank_text(given.worker, given.gpus);
        for (const Placement& rank : given.others) all += "," + rank_text(rank.worker, rank.gpus);
        continue;
      }
      const std::vector<std::string>& gpus = std::get<Assigned>(event).gpus;
      if (!gpus.empty()) all += " on " + joined(gpus);
      WorkerId at = std::get<Assigned>(event).worker;
      if (at > 0) all += " at " + state_.workers[at].info.name;
      continue;
    }
    if (!admit(state_, event)) return "a proposal was refused: " + text_of(id);
    std::string problem = step(event, printed);
    if (!problem.empty()) return problem;
  }
  for (const std::string& one : printed) all += (all.empty() ? "" : "; ") + one;
  return all == expected ? "" : "came out: " + all;
}

std::string Scenario::scale_up(const Words& words, const std::string& expected) {
  std::string all;
  if (auto asked = elastic_scale_up(state_, attempt(words[1]), number(words, "after", 0))) {
    if (!admit(state_, *asked)) return "a proposal was refused";
    std::vector<std::string> printed{"ranks " + std::to_string(asked->ranks)};
    std::string problem = step(*asked, printed);
    if (!problem.empty()) return problem;
    for (const std::string& one : printed) all += (all.empty() ? "" : "; ") + one;
  }
  return all == expected ? "" : "came out: " + all;
}

std::string Scenario::check(const Words& words, const std::string& rest) {
  const Run& run = state_.runs.at(run_);
  if (words[0] == "status") {
    std::string is = status_name(run.status);
    return is == words[1] ? "" : "it is " + is;
  }
  if (words[0] == "rollover") {
    std::string is = phase_name(run.rollover.phase);
    if (has_step_to_continue(run)) is = trimmed(is + " step " + std::to_string(run.rollover.step));
    if (!run.rollover.previous.empty()) is = trimmed(is + " from " + run.rollover.previous);
    return is == trimmed(rest.substr(words[0].size())) ? "" : "it is " + is;
  }
  if (words[0] == "counts") {
    RunCounts expected;
    expected.succeeded = uint32_t(number(words, "succeeded", 0));
    expected.cached = uint32_t(number(words, "cached", 0));
    expected.failed = uint32_t(number(words, "failed", 0));
    expected.skipped = uint32_t(number(words, "skipped", 0));
    expected.cancelled = uint32_t(number(words, "cancelled", 0));
    expected.pending = uint32_t(number(words, "pending", 0));
    expected.ready = uint32_t(number(words, "ready", 0));
    expected.running = uint32_t(number(words, "running", 0));
    expected.waiting = uint32_t(number(words, "waiting", 0));
    expected.ignored = uint32_t(number(words, "ignored", 0));
    return expected == run.counts ? "" : "counts differ:\n" + dump(state_);
  }
  UnitId u = unit(words[1]);
  if (u == kNoNode) return "no such unit";
  const Unit& is = run.units[u];
  if (words[0] == "restarts") {
    std::string count = std::to_string(is.detail ? is.detail->restarts : 0);
    return count == words[2] ? "" : "restarts: " + count + ", " + restarts_text(is);
  }
  if (words[0] == "why" || words[0] == "error") {
    std::string text = trimmed(trimmed(rest.substr(words[0].size())).substr(words[1].size()));
    std::string printed = words[0] == "why" ? explain_wait(state_, run_, u)
                                            : (is.detail ? is.detail->failure.message : "");
    return printed.find(text) != std::string::npos ? "" : "it says: " + printed;
  }
  if (status_name(is.status) != words[2]) return std::string("it is ") + status_name(is.status);
  if (has(words, "cached") != is.cached) return is.cached ? "it is cached" : "it is not cached";
  std::string on = option(words, "on");
  if (!on.empty() && on != joined(gpus_of(is))) return "it is on " + joined(gpus_of(is));
  std::string at = option(words, "at");
  if (!at.empty() && worker(at) != is.worker)
    return "it is at " + state_.workers[is.worker].info.name;
  std::string ranks = option(words, "ranks"), are;
  for_each_rank(is, [&](WorkerId worker, const std::vector<std::string>& gpus) {
    are += (are.empty() ? "" : ",") + rank_text(worker, gpus);
  });
  if (!ranks.empty() && ranks != are) return "its ranks are at " + are;
  std::string attempts = option(words, "attempts");
  if (!attempts.empty() && std::to_string(is.attempts) != attempts) {
    return "attempts: " + std::to_string(is.attempts);
  }
  std::string since = option(words, "since");
  if (!since.empty() && std::to_string(is.started) != since)
    return "it has run since " + std::to_string(is.started);
  return "";
}

}  // namespace flow::core
