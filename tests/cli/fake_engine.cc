// The public library with fixed answers: the output of the command line is compared with it byte by
// byte. The name of the script or run selects the scenario.
#include <condition_variable>
#include <filesystem>
#include <limits>
#include <mutex>

#include "flow/cluster_view.hpp"
#include "flow/cost.hpp"
#include "flow/detached.hpp"
#include "flow/exchange.hpp"
#include "flow/flow.hpp"
#include "flow/machine.hpp"
#include "flow/page.hpp"
#include "flow/report.hpp"

namespace flow {

namespace {

constexpr int64_t kStart = 1'795'238'220'000;  // 2026-11-21T05:17:00Z
constexpr const char* kRunId = "20261121-051700-0000abcd";

Event event(const char* type, const char* task, const char* status, int64_t after_ms,
            std::string text = "") {
  Event e;
  e.type = type;
  e.run = kRunId;
  e.task = task;
  e.status = status;
  e.at_ms = kStart + after_ms;
  e.text = std::move(text);
  e.attempt = *task == '\0' ? 0 : 1;
  return e;
}

Event progress(const char* task, int64_t after_ms, double fraction, double loss) {
  Event e = event("progress", task, "", after_ms);
  e.fraction = fraction;
  e.data = Value::map({{Value("loss"), Value(loss)}});
  return e;
}

TaskInfo task(const char* name, const char* status, uint32_t attempts, int64_t from_ms,
              int64_t to_ms) {
  TaskInfo t;
  t.name = name;
  t.status = status;
  t.attempts = attempts;
  t.started_ms = kStart + from_ms;
  t.finished_ms = kStart + to_ms;
  return t;
}

struct Story {
  std::vector<Event> events;
  RunInfo info;
  bool waits_for_a_signal = false;  // runs until it is interrupted
  bool serves = false;              // until it is asked to end
};

RunInfo base_info(const char* status) {
  RunInfo info;
  info.id = kRunId;
  info.pipeline = "digits";
  info.status = status;
  info.script = "/data/pipeline.lua";
  info.started_ms = kStart;
  info.finished_ms = kStart + 2500;
  info.params = Value::map({{Value("epochs"), Value(3)}});
  return info;
}

Story story_ok() {
  Story s;
  s.info = base_info("succeeded");
  Event cached = event("task", "ingest", "succeeded", 5);
  cached.cached = true;
  s.events = {event("run", "", "running", 0),
              cached,
              event("task", "train", "running", 10),
              progress("train", 500, 0.25, 1.5),
              progress("train", 700, 0.5, 0.75),
              progress("train", 1600, 0.75, 0.125),
              event("task", "train", "succeeded", 2010),
              event("task", "evaluate", "running", 2020),
              event("task", "evaluate", "succeeded", 2400),
              event("run", "", "succeeded", 2500)};
  s.info.counts.succeeded = 3;
  s.info.counts.cached = 1;
  s.info.tasks = {task("ingest", "succeeded", 0, 5, 5), task("train", "succeeded", 1, 10, 2010),
                  task("evaluate", "succeeded", 1, 2020, 2400)};
  s.info.tasks[0].cached = true;
  s.info.tasks[1].usage = {0.25, 0.5, 0.125, 1.75, 4, int64_t{210} << 20, 4096, 8192};
  s.info.tasks[1].user = "ada";
  s.info.result = Value::map({{Value("accuracy"), Value(0.96875)}});
  return s;
}

Story story_fails() {
  Story s;
  s.info = base_info("failed");
  Event again = event("task", "train", "running", 1000);
  again.attempt = 2;
  Event failed = event("task", "train", "failed", 2010, "train.lua:12: no such column `pixel`");
  failed.attempt = 2;
  failed.evidence = "stack traceback:\n  train.lua:12: in function";
  s.events = {event("run", "", "running", 0),
              event("warning", "", "", 0,
                    "train asks for cpus = 8, but there are 2 CPU slots: it runs with 2"),
              event("task", "train", "running", 10),
              again,
              failed,
              event("task", "evaluate", "skipped", 2011, "`train` failed"),
              event("run", "", "failed", 2500)};
  s.info.counts.failed = 1;
  s.info.counts.skipped = 1;
  s.info.retried = 1;
  s.info.tasks = {task("train", "failed", 2, 10, 2010), task("evaluate", "skipped", 0, 0, 0)};
  s.info.tasks[0].error =
      "train.lua:12: no such column `pixel`\nstack traceback:\n  train.lua:12: in function";
  s.info.tasks[1].error = "`train` failed";
  s.info.tasks[1].started_ms = s.info.tasks[1].finished_ms = 0;
  return s;
}

Story story_waits() {
  Story s;
  s.info = base_info("interrupted");
  s.info.finished_ms = 0;
  s.events = {event("run", "", "running", 0), event("task", "publish", "running", 10),
              event("task", "publish", "waiting", 20, "approved"), event("run", "", "waiting", 20)};
  s.info.counts.waiting = 1;
  s.info.tasks = {task("publish", "waiting", 1, 10, 20)};
  s.info.tasks[0].finished_ms = 0;
  s.info.tasks[0].waits_for =
      "it waits for the signal `approved`: `flow signal R1 approved` sends it";
  s.waits_for_a_signal = true;
  return s;
}

Story story_serves() {
  Story s;
  s.info = base_info("succeeded");
  s.events = {event("run", "", "running", 0), event("task", "digits", "running", 10),
              event("serving", "digits", "running", 20, "http://127.0.0.1:8080"),
              event("run", "", "serving", 20)};
  s.info.counts.succeeded = 1;
  s.info.tasks = {task("digits", "succeeded", 1, 10, 2500)};
  s.info.result = Value::map({{Value("url"), Value("http://127.0.0.1:8080")}});
  s.serves = true;
  return s;
}

ServiceInfo digits_service() {
  ServiceInfo service;
  service.version = kRunId;
  service.name = "prod";
  service.service = "digits";
  service.status = "serving";
  service.url = "http://127.0.0.1:8080";
  service.replicas = {{"digits[0]", "busy", 4711, "local", {"GPU-a"}},
                      {"digits[1]", "waiting", 0, "", {}}};
  service.traffic = {true, false, 90, 1500, 3, 12.25, 2300, 41'000, 4, 1, 0, 0, {}};
  return service;
}

/// It serves, and goes on when it is left.
Story story_stays() {
  Story s;
  s.info = base_info("serving");
  s.info.name = "prod";
  s.info.finished_ms = 0;
  s.info.services = {digits_service()};
  s.events = {event("run", "", "running", 0),
              event("serving", "digits", "running", 20, "http://127.0.0.1:8080"),
              event("run", "", "serving", 20)};
  s.serves = true;
  return s;
}

Story story_of(const std::string& name) {
  if (name.find("stays") != std::string::npos) return story_stays();
  if (name.find("fails") != std::string::npos) return story_fails();
  if (name.find("waits") != std::string::npos) return story_waits();
  if (name.find("serves") != std::string::npos) return story_serves();
  if (name.find("wrong") != std::string::npos) {
    throw Failed(
        user_error("pipeline.lua:3: unknown option `cpu` of task `train`. Did you mean `cpus`?"));
  }
  if (name.find("full") != std::string::npos) {
    throw Failed(environment_error("cannot write `.flow/db`: No space left on device (0 B free)."));
  }
  return story_ok();
}

const std::vector<std::string>& names() {
  static const std::vector<std::string> known = {"ok", "fails", "waits"};
  return known;
}

Story story_of_run(const std::string& selector) {
  if (selector == "stays") return story_stays();
  if (selector.empty() || selector == "last" || std::string(kRunId).starts_with(selector))
    return story_ok();
  for (const std::string& name : names()) {
    if (selector == name) return story_of(name);
  }
  std::string near = nearest_name(selector, names());
  throw Failed(user_error("there is no run `" + selector + "`" +
                          (near.empty() ? "" : " (did you mean `" + near + "`?)") +
                          ": `flow ls` lists the runs."));
}

PlanInfo plan_of(const std::string& script) {
  story_of(script);
  PlanInfo plan;
  plan.pipeline = "digits";
  plan.nodes = {{"ingest", "ingest", "task", "", "cached", "", "", {}, {}},
                {"train",
                 "train",
                 "map",
                 "",
                 "runs",
                 "`normalise` in features.lua changed",
                 "",
                 {"ingest"},
                 {}},
                {"check", "", "when", "", "unknown", "waits for `train`", "", {"train"}, {}},
                {"digits#2",
                 "digits",
                 "service",
                 "api",
                 "runs",
                 "a service always starts",
                 "",
                 {"train"},
                 {"check"}}};
  plan.warnings = {"pipeline.lua:9: `if model` is always true: a handle is not its value"};
  return plan;
}

}  // namespace

namespace detail {

struct RunHandle {
  Story story;
  std::mutex mutex;
  std::condition_variable wake;
  size_t next = 0;
  bool ended = false;

  std::optional<Event> next_event() {
    std::unique_lock lock(mutex);
    if (next < story.events.size()) return story.events[next++];
    if (story.waits_for_a_signal || story.serves) wake.wait(lock, [this] { return ended; });
    return std::nullopt;
  }
  void end() {
    std::lock_guard lock(mutex);
    ended = true;
    wake.notify_all();
  }
};

struct EngineImpl {};

}  // namespace detail

struct ReaderImpl {
  std::string dir;
};

const std::string& Run::id() const { return state_->story.info.id; }
std::optional<Event> Run::next_event() { return state_->next_event(); }
RunInfo Run::info() const { return state_->story.info; }
RunInfo Run::summary() const { return state_->story.info; }
Counts Run::counts() const { return state_->story.info.counts; }
std::vector<CountedTask> Run::counts_by_task() const {
  std::vector<CountedTask> counted;
  for (const TaskInfo& task : state_->story.info.tasks) {
    counted.push_back({task.name, {}});
    Counts& counts = counted.back().counts;
    counts.succeeded = task.status == "succeeded";
    counts.cached = task.cached;
    counts.failed = task.status == "failed";
    counts.skipped = task.status == "skipped";
    counts.waiting = task.status == "waiting";
  }
  return counted;
}
void Run::interrupt(bool) { state_->end(); }
void Run::cancel() { state_->end(); }
void Run::end_serving() { state_->end(); }
Value Run::wait() {
  const RunInfo& info = state_->story.info;
  if (info.status == "failed") throw RunFailed({ErrorKind::task, "failed"});
  if (info.status == "interrupted") throw Failed({ErrorKind::interrupted, "interrupted"});
  return info.result;
}

std::string Event::json() const {
  return "{\"event\":" + to_json(Value(type)) + ",\"task\":" + to_json(Value(task)) +
         ",\"status\":" + to_json(Value(status)) + "}";
}
std::string ServiceInfo::json() const { return "{\"service\":" + to_json(Value(service)) + "}"; }
std::string RunInfo::json() const {
  std::string out =
      "{\"run\":" + to_json(Value(id)) + ",\"status\":" + to_json(Value(status)) + ",\"tasks\":[";
  for (const TaskInfo& t : tasks) out += (out.back() == '[' ? "" : ",") + to_json(Value(t.name));
  return out + "]}";
}

namespace {
Run make_run(Story story) {
  auto state = std::make_shared<detail::RunHandle>();
  state->story = std::move(story);
  return Run(std::move(state));
}
}  // namespace

Engine::Engine(EngineOptions) : impl_(std::make_unique<detail::EngineImpl>()) {}
Engine::~Engine() = default;
void Engine::define(const std::string&, const std::string&, NativeTask) {}
Run Engine::run(const std::string& script, const std::vector<std::pair<std::string, Value>>&,
                const RunOptions& options) {
  for (const auto& [name, value] : options.text_params) {
    if (name != "epochs")
      throw Failed(user_error("the pipeline `digits` has no parameter `" + name +
                              "`. Did you mean `epochs`?"));
  }
  return make_run(story_of(script));
}
Run Engine::resume(const std::string& selector, const RunOptions&, bool) {
  return make_run(story_of_run(selector));
}
Run Engine::retry(const std::string& selector, const std::string&, const RunOptions&) {
  return make_run(story_of_run(selector));
}
Run Engine::serve(const std::string& selector, const RunOptions&) {
  if (selector == "ok")
    throw Failed(
        user_error("only the services of the run ok may run, and the cache does not have "
                   "1 of its tasks:\n  `train`: its result was collected"));
  return make_run(story_of_run(selector));
}
Run Engine::rollback(const std::string& name, const RunOptions&) {
  return make_run(story_of_run(name));
}
std::vector<RunInfo> Engine::stop(const std::string& selector, int64_t) {
  RunInfo run = story_of_run(selector).info;
  if (run.status != "serving")
    throw Failed(user_error("the run " + run.id + " can't be stopped: it has " + run.status));
  run.status = "succeeded";
  return {run};
}
std::vector<ServiceInfo> Engine::services() { return Reader().services(); }
void Engine::cancel(const std::string&) {}
void Engine::signal(const std::string&, const std::string&, const std::string&) {}
PlanInfo Engine::plan(const std::string& script, const RunOptions&) { return plan_of(script); }
RunInfo Engine::show(const std::string& selector) { return story_of_run(selector).info; }
std::vector<std::string> Engine::get(const std::string& selector, const std::string& part,
                                     const std::string& directory) {
  return Reader().get(selector, part, directory);
}
uint64_t Engine::gc(uint32_t keep) { return keep * 1536ull; }
bool Engine::is_writer() const { return true; }
std::string Engine::stopped_by() const { return ""; }
uint64_t Engine::state_bytes() const { return 1'258'291; }
uint32_t Engine::client_runs() const { return 0; }
void Engine::wait_for_clients() {}
std::string Engine::address() const { return "127.0.0.1:7117"; }
std::vector<NodeInfo> Engine::nodes() const { return {}; }
std::string Engine::metrics_address() const { return ""; }
ClusterInfo cluster_info(const EngineOptions&) {
  NodeInfo head, worker;
  head.status = worker.status = "up";
  worker.name = "w1";
  worker.cpus = 8;
  worker.cpus_used = 1.5;
  worker.memory_bytes = int64_t{64} << 30;
  worker.address = "10.0.0.2:41231 (tcp)";
  worker.gpus.push_back({0, "GPU-a", "NVIDIA H200", "", int64_t{140} << 30, 0, false});
  worker.gpus.push_back({1, "MIG-b", "NVIDIA H200 MIG 1g.18gb", "", int64_t{18} << 30, 0, true});
  worker.gpu_uses = {{0.5, int64_t{10} << 30, {"20261121-051700-k3f9x2 train"}}, {}};
  worker.gpu_readings = {{worker.gpus[0].uuid, 0.45, int64_t{9} << 30, 61, 250.0, 3}};
  worker.labels = {{"rack", "a"}};
  worker.resources = {{"fpga", 2}, {"licence", 0.5}};
  worker.resources_used = {{"fpga", 1}, {"licence", 0}};
  worker.tasks = {"20261121-051700-k3f9x2 train"};
  worker.from_head = {3, 1'258'291};
  worker.to_workers = {12, uint64_t{9} << 30};
  return {"127.0.0.1:7117", {head, worker}};
}
NodeInfo describe_worker(const WorkerNodeOptions& options) {
  NodeInfo node = cluster_info({}).nodes[1];
  if (!options.name.empty()) node.name = options.name;
  return node;
}
const GpuReading* NodeInfo::reading_of(const Gpu& gpu) const {
  bool is_first = !gpu_readings.empty() && gpu_readings[0].uuid == gpu.uuid;
  return is_first ? gpu_readings.data() : nullptr;
}
std::string NodeInfo::json() const { return "{\"node\":\"" + name + "\"}"; }
SlurmRequest slurm_request(const EngineOptions& options) {
  return {"sbatch --nodes=" + std::to_string(options.slurm->nodes) + " job.sh",
          "#!/bin/bash\nsrun flow worker\n"};
}

struct WorkerNode::Impl {};
WorkerNode::WorkerNode(WorkerNodeOptions) {}
WorkerNode::~WorkerNode() = default;
bool WorkerNode::is_connected() const { return false; }
std::string WorkerNode::metrics_address() const { return ""; }
void WorkerNode::drain(int64_t, const std::string&) {}
bool WorkerNode::is_drained() const { return true; }
int64_t WorkerNode::without_head_ms() const { return 0; }

struct Page::Impl {
  std::string address = "http://127.0.0.1:8080/", link = address + "?token=fake", state;
};
Page::Page(const EngineOptions& engine, const PageOptions&) : impl_(std::make_unique<Impl>()) {
  impl_->state = engine.state;
}
Page::~Page() = default;
const std::string& Page::address() const { return impl_->address; }
const std::string& Page::link() const { return impl_->link; }
const std::string& Page::state_dir() const { return impl_->state; }

struct ClusterViewer::Impl {};
ClusterViewer::ClusterViewer(const EngineOptions&) {}
ClusterViewer::~ClusterViewer() = default;
ClusterView ClusterViewer::view(const std::string& run) {
  ClusterView view;
  view.state = "/data/.flow";
  view.at_ms = kStart + 3000;
  view.run = story_of_run(run).info;
  view.runs = {*view.run};
  view.runs[0].tasks.clear();
  return view;
}
std::string ClusterView::json() const { return "{\"runs\":[" + run->json() + "]}"; }

Reader::Reader(const EngineOptions& options) : impl_(std::make_unique<ReaderImpl>()) {
  impl_->dir = options.state;
}
Reader::~Reader() = default;
const std::string& Reader::state_dir() const { return impl_->dir; }
std::vector<RunInfo> Reader::list(bool) const {
  if (impl_->dir == "empty") return {};
  std::vector<RunInfo> runs;
  for (const std::string& name : names()) {
    runs.push_back(story_of(name).info);
    runs.back().name = name == "ok" ? "" : name;
  }
  return runs;
}
std::vector<std::string> Reader::left_runs() const { return {}; }
std::vector<ServiceInfo> Reader::services() const {
  if (impl_->dir == "empty") return {};
  ServiceInfo next = digits_service();
  next.name = "";
  next.service = "words";
  next.status = "running";
  next.url = "";
  next.replicas = {{"words", "starting", 0, "w1", {}}};
  next.traffic.reset();
  return {digits_service(), next};
}
RunInfo Reader::show(const std::string& selector) const { return story_of_run(selector).info; }
std::vector<LogLine> Reader::logs(const std::string& selector, const std::string& task) const {
  story_of_run(selector);
  std::vector<LogLine> lines = {{"ingest", 1, 0, kStart, "1500 rows", 0, ""},
                                {"train", 1, 2, kStart + 5, "warning: slow", 0, ""},
                                {"train", 2, 1, kStart + 9, "epoch 1", 0, ""}};
  if (!task.empty()) lines.erase(lines.begin());
  return lines;
}
std::vector<MetricSeries> Reader::metrics(const std::string& selector, const std::string& task,
                                          const std::string& metric) const {
  std::string run = story_of_run(selector).info.id;
  if (task == "ingest") return {};
  MetricSeries loss{run, "train", "loss", "", {}, 0.25, 1, 0.25};
  double nan = std::numeric_limits<double>::quiet_NaN();
  loss.points = {{1, 1, kStart}, {2, nan, kStart + 5}, {3, 0.25, kStart + 9}};
  MetricSeries accuracy{"20261121-041500-a8c2d1", "score[2]", "accuracy", "de", {}, 0.5, 0.5, 0.5};
  accuracy.points = {{7, 0.5, kStart}};
  if (metric == "loss" || !task.empty()) return {loss};
  return {loss, accuracy};
}
std::vector<std::string> Reader::write_tensorboard(const std::string& directory, const std::string&,
                                                   const std::string&, const std::string&) const {
  return {directory + "/train/events.out.tfevents.1"};
}
std::vector<ComparedRun> Reader::compare(const std::vector<std::string>& selectors,
                                         const std::string& metric, const std::string& task) const {
  std::vector<ComparedRun> runs;
  for (const std::string& selector : selectors) {
    double rate = static_cast<double>(runs.size() + 1) / 4;
    runs.push_back({story_of_run(selector).info, Value::map({{"rate", rate}}),
                    runs.empty() ? metrics(selector, task, metric) : std::vector<MetricSeries>()});
  }
  return runs;
}
std::string Reader::why(const std::string& selector, const std::string& task,
                        const ExplainOptions&) const {
  story_of_run(selector);
  return (task.empty() ? "train" : task) + " ran again: `normalise` in features.lua changed\n";
}
std::string Reader::diff(const std::string&, const std::string&, const ExplainOptions&) const {
  return "`train`:\n  its result differs\n";
}
PlanInfo Reader::plan(const std::string& script, const RunOptions&) const {
  return plan_of(script);
}
PlanInfo Reader::graph(const std::string& selector) const {
  story_of_run(selector);
  return plan_of("ok");
}
std::vector<std::string> Reader::get(const std::string&, const std::string&,
                                     const std::string& directory) const {
  return {directory + "/result.json"};
}
Value Reader::value(const std::string& selector, const std::string& part) const {
  Value result = story_of_run(selector).info.result;
  if (part.empty()) return result;
  const Value* found = result.find(std::string_view(part));
  if (found == nullptr)
    throw Failed(user_error("the result has no part `" + part + "` (did you mean `accuracy`?)"));
  return *found;
}
std::vector<ConfigValue> Reader::config(const std::string&, std::string& profile) const {
  profile.clear();
  return {};
}
uint64_t Reader::state_bytes() const { return 1'258'291; }

std::vector<std::string> export_run(const EngineOptions&, const std::string& selector,
                                    const ExportOptions& how) {
  story_of_run(selector);
  return {how.target};
}
std::string report_html(const EngineOptions&, const std::vector<std::string>& selectors) {
  for (const std::string& selector : selectors) story_of_run(selector);
  return "<!doctype html>\n";
}
void write_report(const EngineOptions& options, const std::vector<std::string>& selectors,
                  const ReportOptions&) {
  report_html(options, selectors);
}
std::string write_trace(const EngineOptions&, const std::string& selector, const std::string& file,
                        bool) {
  story_of_run(selector);
  return file;
}
ImportedWorkflow import_workflow(const std::string&, const ImportOptions& options) {
  return {"blast", 3, 1, 2, {options.directory + "/pipeline.lua"}};
}

CostReport cost_report(const EngineOptions&, const CostOptions& how) {
  story_of_run(how.run);
  CostReport report;
  report.runs = {how.run};
  report.by = how.by;
  CostRow& row = report.rows.emplace_back();
  row.name = "train";
  row.tasks = 1;
  row.all.attempts = 1;
  row.all.cpu_hours = 0.25;
  row.all.cpu_amount = row.all.memory_amount = row.all.gpu_amount = std::nullopt;
  report.total = row;
  return report;
}
AdviceReport advise(const EngineOptions&, const std::string& selector) {
  story_of_run(selector);
  return {selector, 1, 0, {}};
}
std::string CostReport::json() const { return "{}"; }
std::string AdviceReport::json() const { return "{}"; }
std::optional<double> CostFigures::amount() const { return std::nullopt; }
std::string BudgetInfo::text() const { return "1.00 of 2.00 USD"; }

PlanInfo build_graph(const std::string& script, const EngineOptions&, const RunOptions&) {
  return plan_of(script);
}
std::vector<ParameterInfo> pipeline_parameters(const std::string&, const EngineOptions&) {
  return {};
}
std::vector<std::string> lint(const std::string& file) {
  return {std::filesystem::path(file).filename().string() +
          ":9: `if model` is always true: a handle is not its value"};
}
std::string state_directory(const EngineOptions& options) {
  return options.state.empty() ? ".flow" : options.state;
}
std::string executor_program(const EngineOptions&) { return "/bin/true"; }
MachineGpus machine_gpus(const EngineOptions&) { return {{}, "the fake engine has none", {}}; }
std::vector<GpuLibrary> gpu_libraries() { return {}; }
void check_target(const std::string&) {}

// The fake engine is always that of a head, so no command goes to the background.
DetachedProgram::DetachedProgram(const std::string&, const std::vector<std::string>&) {}
DetachedProgram::~DetachedProgram() = default;
std::optional<DetachedReport> DetachedProgram::next() { return std::nullopt; }
class RotatedOutput {};
std::unique_ptr<DetachedReporter> DetachedReporter::take() { return nullptr; }
DetachedReporter::~DetachedReporter() = default;
void DetachedReporter::send(const DetachedReport&) const {}
void DetachedReporter::redirect(const std::string&) {}

std::string broken_state_link(const std::string&) { return ""; }
std::string unusable_state(const std::string&) { return ""; }

MachineLimits machine_limits() {
  MachineLimits limits;
  limits.cpus = 4;
  limits.memory_bytes = int64_t{8} << 30;
  limits.is_memory_enforced = true;
  limits.memory_enforcement = "cgroup v2 below /sys/fs/cgroup";
  return limits;
}
const char* version() { return "0.1.0"; }

std::vector<ConfigFile> find_config(const std::string&) { return {}; }
std::vector<ConfigValue> config_values(const ConfigOptions&) { return {}; }
std::vector<ConfigValue> explain_config(const std::string&, const EngineOptions&, const RunOptions&,
                                        std::vector<std::string>&) {
  return {};
}

}  // namespace flow
