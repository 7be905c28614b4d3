// ScriptVm: loads a script, builds its plan, runs attempts. The first file to read in lua/.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "engine/base/units.hpp"
#include "lua/sandbox.hpp"

namespace flow::lua {

VmContext& context(lua_State* L) { return **static_cast<VmContext**>(lua_getextraspace(L)); }

namespace {

constexpr uint64_t kBuildSeed = 0;
constexpr size_t kSourceMax = size_t{16} << 20;  // bytes of one source file
constexpr int kFramesShown = 12;                 // of a traceback, at each end

// ---- memory

/// What a state may use. 0: no limit.
struct Memory {
  size_t used = 0, limit = 0;
  bool refused = false;
  size_t refused_peak = 0;  // what it would have come to
};

void* allocate(void* self, void* old, size_t old_size, size_t size) {
  auto& memory = *static_cast<Memory*>(self);
  if (old == nullptr) old_size = 0;
  if (size == 0) {
    std::free(old);
    memory.used -= old_size;
    return nullptr;
  }
  if (memory.limit != 0 && size > old_size && memory.used + (size - old_size) > memory.limit) {
    memory.refused = true;
    memory.refused_peak = memory.used + (size - old_size);
    return nullptr;
  }
  void* fresh = std::realloc(old, size);
  if (fresh != nullptr) memory.used += size - old_size;
  return fresh;
}

int panic(lua_State* L) {
  const char* text = lua_tostring(L, -1);
  std::fprintf(stderr, "flow: an error outside any call: %s\n", text == nullptr ? "?" : text);
  return 0;
}

// ---- errors

std::string function_text(const lua_Debug& frame) {
  if (frame.name != nullptr && frame.name[0] != '\0')
    return fmt::format("in function `{}`", frame.name);
  if (std::string_view(frame.what) == "main") return "at the top of the file";
  return fmt::format("in the function of line {}", frame.linedefined);
}

// The message as text; the traceback is kept beside.
int on_error(lua_State* L) {
  if (lua_touserdata(L, 1) == &kUnwindKey) return 1;
  sandbox(L).traceback = traceback_text(L);
  if (lua_type(L, 1) == LUA_TSTRING) return 1;
  push_error_text(L, 1);
  return 1;
}

int call_traced(lua_State* L, int arguments, int results) {
  int handler = lua_gettop(L) - arguments;
  sandbox(L).traceback.clear();
  lua_pushcfunction(L, on_error);
  lua_insert(L, handler);
  int status = lua_pcall(L, arguments, results, handler);
  lua_remove(L, handler);
  return status;
}

std::string error_text(lua_State* L, int status) {
  if (status != LUA_ERRRUN && status != LUA_ERRMEM && status != LUA_ERRERR)
    return "an error inside a library function";  // a C++ exception: it has no message in Lua
  size_t size = 0;
  const char* text = lua_tolstring(L, -1, &size);
  return text == nullptr ? "an error without a message" : std::string(text, size);
}

// ---- one state

class State {
 public:
  State() : L_(lua_newstate(allocate, &memory_)) {
    FLOW_CHECK(L_ != nullptr);
    lua_atpanic(L_, panic);
    context_.sandbox = &sandbox_;
    context_.graph = &graph_;
    *static_cast<VmContext**>(lua_getextraspace(L_)) = &context_;
    sandbox_.files = &bundle_.files;
    sandbox_.seed = kBuildSeed;
  }
  ~State() { lua_close(L_); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Result<BuildResult> build(const BuildRequest& request);
  Status load(const Bundle& bundle);
  AttemptOutcome run(const AttemptRequest& request, AttemptHost& host);
  /// As run, and keeps the table that the service's function returned.
  AttemptOutcome start_service(const AttemptRequest& request, AttemptHost& host);
  Result<Value> predict(const Value& inputs);
  /// The last attempt may have left what no restore can put back.
  bool is_spent() const { return spent_; }

 private:
  struct Building {
    State* state;
    const BuildRequest* request;
    Status status;
  };
  struct Loading {
    State* state;
    const Bundle* bundle;
    Status status;
  };
  struct Attempt {
    State* state;
    const AttemptRequest* request;
    AttemptOutcome* outcome;
    bool is_service;
  };
  struct Prediction {
    State* state;
    const Value* inputs;
    Result<Value> result;
  };

  static int load_body(lua_State* L);
  static int build_body(lua_State* L);
  static int attempt_body(lua_State* L);
  static int predict_body(lua_State* L);

  void use_bundle(const Bundle& bundle);
  void use_folder(const std::string& root, const std::string& main);
  Status load_main();
  void read_result(const AttemptRequest& request, const TaskObject& task, AttemptOutcome& out);
  void keep_service(const AttemptRequest& request, const TaskObject& task, AttemptOutcome& out);
  AttemptOutcome attempt(const AttemptRequest& request, AttemptHost& host, bool is_service);
  void begin_attempt(const AttemptRequest& request, AttemptHost& host);
  void end_attempt();
  void take_snapshots();

  Memory memory_;
  lua_State* L_;
  VmContext context_;
  Sandbox sandbox_;
  GraphBuilder graph_;
  Bundle bundle_;
  std::vector<std::unique_ptr<Snapshot>> snapshots_;  // by ordinal; null: none can be taken
  bool spent_ = false;
  int service_ref_ = LUA_NOREF;
  AttemptRequest service_request_;
};

// ---- loading

std::optional<std::string> read_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof buffer) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
    if (text.size() > kSourceMax) return std::nullopt;
  }
  if (file.bad()) return std::nullopt;
  return text;
}

void State::use_bundle(const Bundle& bundle) {
  context_.root = bundle.root;
  context_.main = bundle.main;
  bundle_.root = bundle.root;
  bundle_.main = bundle.main;
  sandbox_.read_source = [&bundle](const std::string& path) -> std::optional<std::string> {
    for (const auto& [name, text] : bundle.files)
      if (name == path) return text;
    return std::nullopt;
  };
}

void State::use_folder(const std::string& root, const std::string& main) {
  context_.root = root;
  context_.main = main;
  bundle_.root = root;
  bundle_.main = main;
  sandbox_.source_folder = root;
  sandbox_.read_source = [root](const std::string& path) { return read_file(root + "/" + path); };
}

// Runs the script; its result lies at the top, or there is an Error.
Status State::load_main() {
  lua_State* L = L_;
  open_sandbox(L);
  std::optional<std::string> text = sandbox_.read_source(context_.main);
  if (!text)
    return user_error(fmt::format("cannot read the script `{}` in {}", context_.main,
                                  context_.root.empty() ? "its bundle" : context_.root));
  bundle_.files.emplace_back(context_.main, *text);
  FLOW_TRY(push_chunk(L, context_.main, *text));
  context_.phase = Phase::loading;
  int status = call_traced(L, 0, LUA_MULTRET);
  if (status != LUA_OK) return user_error(error_text(L, status));
  return {};
}

int State::load_body(lua_State* L) {
  auto& loading = *static_cast<Loading*>(lua_touserdata(L, 1));
  State& state = *loading.state;
  loading.status = state.load_main();
  if (!loading.status.ok()) return 0;
  lua_settop(L, 1);
  freeze_libraries(L);
  load_remaining(L, *loading.bundle);
  state.context_.phase = Phase::task;
  state.take_snapshots();
  return 0;
}

Status State::load(const Bundle& bundle) {
  use_bundle(bundle);
  sandbox_.silent = true;
  Loading loading{this, &bundle, {}};
  lua_pushcfunction(L_, load_body);
  lua_pushlightuserdata(L_, &loading);
  int status = call_traced(L_, 1, 0);
  if (status != LUA_OK) loading.status = user_error(error_text(L_, status));
  lua_settop(L_, 0);
  return loading.status;
}

void State::take_snapshots() {
  for (const auto& task : graph_.tasks) {
    bool is_lua = task->function_ref != LUA_NOREF;
    if (is_lua) lua_rawgeti(L_, LUA_REGISTRYINDEX, task->function_ref);
    snapshots_.push_back(is_lua ? Snapshot::take(L_, -1) : nullptr);
    if (is_lua) lua_pop(L_, 1);
  }
  forget_function_codes(L_);
  sandbox_.printed_by_load = sandbox_.printed;
}

// ---- building

// The pipeline that the script returned, on top of the stack above `base`.
const PipelineObject* returned_pipeline(lua_State* L, int base, Status& status) {
  const VmContext& ctx = context(L);
  int count = lua_gettop(L) - base;
  if (count >= 1)
    if (const PipelineObject* pipeline = test_pipeline(L, base + 1)) {
      if (count == 1) return pipeline;
      status = user_error(fmt::format(
          "{}: the script returned {} values; it returns one, its pipeline", ctx.main, count));
      return nullptr;
    }
  std::string advice = "end it with `return flow.pipeline(\"name\", { … }, function(p) … end)`";
  if (ctx.graph->pipelines.size() == 1)
    advice = fmt::format("write `return` before its flow.pipeline(\"{}\", …)",
                         ctx.graph->pipelines.front()->name);
  std::string what = "nothing";
  if (count >= 1) what = kind_text(L, base + 1);
  status = user_error(
      fmt::format("{}: the script returned {}, not a pipeline; {}", ctx.main, what, advice));
  return nullptr;
}

std::string joined(const std::vector<Error>& errors) {
  std::string text;
  for (const Error& error : errors) {
    if (!text.empty()) text += "\n\n";
    text += error.message;
  }
  return text;
}

int State::build_body(lua_State* L) {
  auto& building = *static_cast<Building*>(lua_touserdata(L, 1));
  State& state = *building.state;
  Status& status = building.status;
  const BuildRequest& request = *building.request;
  int base = lua_gettop(L);
  status = state.load_main();
  if (!status.ok()) return 0;
  const PipelineObject* pipeline = returned_pipeline(L, base, status);
  if (pipeline == nullptr) return 0;
  freeze_libraries(L);
  fill_codes(L);
  Value params;
  std::vector<Error> errors = bind_params(pipeline->params, request, params);
  if (!errors.empty()) {
    status = user_error(joined(errors));
    return 0;
  }
  state.context_.phase = Phase::building;
  Plan& plan = state.graph_.plan;
  plan.pipeline = pipeline->name;
  plan.params_schema = pipeline->params;
  plan.params = params;
  status = run_body(L, state.graph_, *pipeline, params);
  if (!status.ok()) return 0;
  errors = check_plan(plan);
  if (!errors.empty()) status = user_error(joined(errors));
  return 0;
}

Result<BuildResult> State::build(const BuildRequest& request) {
  if (request.pinned != nullptr) {
    use_bundle(*request.pinned);
    if (!request.root.empty()) context_.root = bundle_.root = request.root;
  } else {
    use_folder(request.root, request.main);
  }
  Building building{this, &request, {}};
  lua_pushcfunction(L_, build_body);
  lua_pushlightuserdata(L_, &building);
  int status = call_traced(L_, 1, 0);
  if (status != LUA_OK) building.status = user_error(error_text(L_, status));
  lua_settop(L_, 0);
  flush_output(L_);
  FLOW_TRY(building.status);
  BuildResult result{std::move(graph_.plan), std::move(bundle_)};
  for (std::string& warning : graph_.warnings) result.plan.warnings.push_back(std::move(warning));
  return result;
}

// ---- running

void State::begin_attempt(const AttemptRequest& request, AttemptHost& host) {
  context_.phase = Phase::task;
  context_.request = &request;
  context_.host = &host;
  context_.input_files.clear();
  sandbox_.unwind = Sandbox::Unwind::none;
  sandbox_.random_seeded = false;
  sandbox_.seed = request.seed;
  sandbox_.walk_table = nullptr;
  if (!sandbox_.step_names.empty()) sandbox_.step_names.clear();
  if (!sandbox_.wait_names.empty()) sandbox_.wait_names.clear();
  sandbox_.checkpoint.reset();
  memory_.refused = false;
  if (request.memory_bytes > 0)
    memory_.limit = memory_.used + static_cast<size_t>(request.memory_bytes);
}

void State::end_attempt() {
  memory_.limit = 0;
  lua_settop(L_, 0);
  close_files(L_);
  flush_output(L_);
  context_.request = nullptr;
  context_.host = nullptr;
  context_.graph = &graph_;
}

// A dynamic task's calls go into a graph of their own.
class FragmentScope {
 public:
  FragmentScope(VmContext& ctx, const std::string& task) : context_(ctx), outer_(ctx.graph) {
    graph.prefix = task + "/";
    ctx.graph = &graph;
  }
  ~FragmentScope() { context_.graph = outer_; }
  FragmentScope(const FragmentScope&) = delete;
  FragmentScope& operator=(const FragmentScope&) = delete;

  GraphBuilder graph;

 private:
  VmContext& context_;
  GraphBuilder* outer_;
};

// What lies at 2 and above is what the function returned.
void State::read_result(const AttemptRequest& request, const TaskObject& task,
                        AttemptOutcome& out) {
  const TaskDef& def = task.def;
  auto refuse = [&](const std::string& problem) {
    out.kind = AttemptOutcome::Kind::failed;
    out.bad_result = true;
    out.message = fmt::format("{}:{}: {} {}", def.file, def.line, request.task, problem);
  };
  int count = lua_gettop(L_) - 1;
  for (int extra = 3; extra <= count + 1; extra++) {
    if (lua_isnil(L_, extra)) continue;
    std::string second = kind_text(L_, extra);
    if (lua_type(L_, extra) == LUA_TSTRING) second = fmt::format("`{}`", lua_tostring(L_, extra));
    refuse(
        fmt::format("returned a second value ({}); a task returns one value: put them in a "
                    "table, or fail with error(\"why\")",
                    second));
    return;
  }
  if (def.kind == TaskKind::dynamic) {
    std::string cycle = find_cycle(*context_.graph);
    if (!cycle.empty()) {
      out.kind = AttemptOutcome::Kind::failed;
      out.bad_result = true;
      out.message = cycle;
      return;
    }
  }
  if (count == 0) return;
  auto value = read_value(L_, 2, "result", def.kind == TaskKind::dynamic);
  if (!value.ok()) return refuse(value.error().message);
  out.result = std::move(*value);
}

int State::attempt_body(lua_State* L) {
  auto& attempt = *static_cast<Attempt*>(lua_touserdata(L, 1));
  State& state = *attempt.state;
  const AttemptRequest& request = *attempt.request;
  const TaskObject& task = *state.graph_.tasks[request.ordinal];
  Sandbox& box = state.sandbox_;
  forget_printed(L);
  reset_output(L);
  if (Snapshot* snapshot = state.snapshots_[request.ordinal].get()) {
    snapshot->restore(L);
  } else {
    state.spent_ = true;
  }
  std::optional<FragmentScope> fragment;
  if (task.def.kind == TaskKind::dynamic) {
    fragment.emplace(state.context_, request.task);
  } else {
    state.context_.graph = nullptr;
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, task.function_ref);
  push_task_context(L);
  int count = 1;
  if (request.args.kind() == Value::Kind::table) {
    const auto& args = request.args.as_table().list;
    luaL_checkstack(L, static_cast<int>(args.size()) + 8, "too many arguments");
    for (const Value& arg : args) push_value(L, arg);
    count += static_cast<int>(args.size());
  }
  lua_call(L, count, LUA_MULTRET);
  if (box.unwind != Sandbox::Unwind::none) return 0;
  if (attempt.is_service) {
    state.keep_service(request, task, *attempt.outcome);
    return 0;
  }
  state.read_result(request, task, *attempt.outcome);
  if (!fragment || attempt.outcome->kind != AttemptOutcome::Kind::succeeded) return 0;
  PlanFragment made;
  made.nodes = std::move(fragment->graph.plan.nodes);
  made.result = std::move(attempt.outcome->result);
  attempt.outcome->result = Value();
  attempt.outcome->fragment = std::move(made);
  return 0;
}

AttemptOutcome failed(std::string message) {
  AttemptOutcome outcome;
  outcome.kind = AttemptOutcome::Kind::failed;
  outcome.message = std::move(message);
  return outcome;
}

AttemptOutcome State::attempt(const AttemptRequest& request, AttemptHost& host, bool is_service) {
  if (request.ordinal >= graph_.tasks.size())
    return failed(fmt::format("the script has no task number {}: it defines {}", request.ordinal,
                              graph_.tasks.size()));
  const TaskObject& task = *graph_.tasks[request.ordinal];
  if (task.function_ref == LUA_NOREF)
    return failed(fmt::format("`{}` is no Lua task", task.def.name));
  AttemptOutcome outcome;
  begin_attempt(request, host);
  Attempt attempt{this, &request, &outcome, is_service};
  lua_pushcfunction(L_, attempt_body);
  lua_pushlightuserdata(L_, &attempt);
  int status = call_traced(L_, 1, 0);
  if (sandbox_.unwind != Sandbox::Unwind::none) {
    bool waits = sandbox_.unwind == Sandbox::Unwind::waiting;
    outcome = AttemptOutcome();
    outcome.kind = waits ? AttemptOutcome::Kind::waiting : AttemptOutcome::Kind::stopped;
    if (waits) {
      outcome.signal = sandbox_.signal;
      outcome.wait_name = sandbox_.wait_name;
      outcome.wait_timeout_ms = sandbox_.wait_timeout_ms;
    }
  } else if (status != LUA_OK) {
    size_t limit = std::exchange(memory_.limit, 0);
    outcome = failed(error_text(L_, status));
    outcome.traceback = sandbox_.traceback;
    bool no_memory = outcome.message.find("not enough memory") != std::string::npos;
    outcome.out_of_memory = status == LUA_ERRMEM || (memory_.refused && no_memory);
    if (outcome.out_of_memory) {
      outcome.message =
          fmt::format("{}:{}: {} ran out of memory", task.def.file, task.def.line, request.task);
      if (memory_.refused) {
        size_t granted = static_cast<size_t>(request.memory_bytes);
        outcome.message += fmt::format(
            ": its limit is {}, and its peak would be {}; raise the task's `memory`, or let it "
            "hold less at once",
            format_bytes(granted), format_bytes(memory_.refused_peak - (limit - granted)));
      }
    }
  }
  bool serves = is_service && outcome.kind == AttemptOutcome::Kind::succeeded;
  if (serves) {
    lua_settop(L_, 0);
    flush_output(L_);
  } else {
    end_attempt();
  }
  return outcome;
}

AttemptOutcome State::run(const AttemptRequest& request, AttemptHost& host) {
  return attempt(request, host, false);
}

// ---- services

// What lies at 2 is what the service's function returned.
void State::keep_service(const AttemptRequest& request, const TaskObject& task,
                         AttemptOutcome& out) {
  bool is_table = lua_type(L_, 2) == LUA_TTABLE;
  bool predicts = is_table && lua_getfield(L_, 2, "predict") == LUA_TFUNCTION;
  if (!predicts) {
    out.kind = AttemptOutcome::Kind::failed;
    out.bad_result = true;
    std::string what = is_table ? "a table without it" : kind_text(L_, 2);
    out.message = fmt::format(
        "{}:{}: the service {} returned {}; it returns a table with the "
        "function predict: {{ predict = function(inputs) … end }}",
        task.def.file, task.def.line, request.task, what);
    return;
  }
  service_ref_ = luaL_ref(L_, LUA_REGISTRYINDEX);
}

AttemptOutcome State::start_service(const AttemptRequest& request, AttemptHost& host) {
  service_request_ = request;
  spent_ = true;  // what predictions leave is seen by no attempt
  return attempt(service_request_, host, true);
}

int State::predict_body(lua_State* L) {
  auto& prediction = *static_cast<Prediction*>(lua_touserdata(L, 1));
  lua_rawgeti(L, LUA_REGISTRYINDEX, prediction.state->service_ref_);
  push_value(L, *prediction.inputs);
  lua_call(L, 1, 1);
  prediction.result = read_value(L, -1, "the result of predict", false);
  return 0;
}

Result<Value> State::predict(const Value& inputs) {
  if (service_ref_ == LUA_NOREF) return internal_error("no service has been started");
  Prediction prediction{this, &inputs, Value()};
  context_.input_files.clear();
  lua_pushcfunction(L_, predict_body);
  lua_pushlightuserdata(L_, &prediction);
  int status = call_traced(L_, 1, 0);
  if (sandbox_.unwind != Sandbox::Unwind::none) {
    sandbox_.unwind = Sandbox::Unwind::none;
    prediction.result = Error{ErrorKind::task, "predict waited or stopped: it only answers"};
  } else if (status != LUA_OK) {
    prediction.result = Error{ErrorKind::task, error_text(L_, status)};
  }
  lua_settop(L_, 0);
  flush_output(L_);
  return std::move(prediction.result);
}

// ---- the VM: one loaded state, made again where an attempt has used it up

class Vm : public ScriptVm {
 public:
  Result<BuildResult> build(const BuildRequest& request) override {
    State state;
    return state.build(request);
  }

  Status load(const Bundle& bundle) override {
    state_.reset();
    bundle_ = bundle;
    return load_again();
  }

  AttemptOutcome run(const AttemptRequest& request, AttemptHost& host) override {
    if (state_ == nullptr || state_->is_spent()) {
      Status loaded = load_again();
      if (!loaded.ok()) return failed(loaded.error().message);
    }
    return state_->run(request, host);
  }

  AttemptOutcome start_service(const AttemptRequest& request, AttemptHost& host) override {
    Status loaded = load_again();
    if (!loaded.ok()) return failed(loaded.error().message);
    return state_->start_service(request, host);
  }

  Result<Value> predict(const Value& inputs) override {
    if (state_ == nullptr) return internal_error("no service has been started");
    return state_->predict(inputs);
  }

  void end_service() override { state_.reset(); }

 private:
  Status load_again() {
    auto fresh = std::make_unique<State>();
    FLOW_TRY(fresh->load(bundle_));
    state_ = std::move(fresh);
    return {};
  }

  Bundle bundle_;
  std::unique_ptr<State> state_;
};

// The deepest level that is there, found by halving: lua_getstack takes time in proportion to it.
int last_level(lua_State* L) {
  lua_Debug frame;
  int low = 0, high = 1;
  while (lua_getstack(L, high, &frame)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    (lua_getstack(L, middle, &frame) ? low : high) = middle;
  }
  return low;
}

// The Lua functions from level `from` to `to`, a line each.
void append_frames(lua_State* L, int from, int to, std::string& text) {
  lua_Debug frame;
  for (int level = from; level <= to && lua_getstack(L, level, &frame); level++) {
    lua_getinfo(L, "Slnt", &frame);
    if (frame.currentline <= 0) continue;
    if (!text.empty()) text += '\n';
    text += fmt::format("{}:{}: {}", frame.short_src, frame.currentline, function_text(frame));
  }
}

}  // namespace

std::string traceback_text(lua_State* L) {
  std::string text;
  int last = last_level(L);
  if (last <= 2 * kFramesShown) {
    append_frames(L, 1, last, text);
    return text;
  }
  append_frames(L, 1, kFramesShown, text);
  text += fmt::format("\n… ({} more)", last - 2 * kFramesShown);
  append_frames(L, last - kFramesShown + 1, last, text);
  return text;
}

void fill_codes(lua_State* L) {
  for (const auto& task : context(L).graph->tasks) {
    if (task->function_ref == LUA_NOREF || !task->def.code.is_zero()) continue;
    lua_rawgeti(L, LUA_REGISTRYINDEX, task->function_ref);
    CanonicalCode code = canonical_code(L, -1);
    lua_pop(L, 1);
    task->def.code = code.digest;
    task->def.code_parts = std::move(code.parts);
  }
  forget_function_codes(L);
}

}  // namespace flow::lua

namespace flow {

std::unique_ptr<ScriptVm> make_script_vm() { return std::make_unique<lua::Vm>(); }

}  // namespace flow
