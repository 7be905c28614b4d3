// Runs attempts in a loaded state, and a service until its state is destroyed.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/size_units.hpp"
#include "flow/tags.hpp"
#include "kernels/cuda/own_products.hpp"
#include "kernels/tensor/runtime.hpp"
#include "lua/context/comm.hpp"
#include "lua/state/arguments.hpp"
#include "lua/tensor/gradient_hooks.hpp"
#include "lua/tensor/memory_budget.hpp"
#include "lua/vm/script_state.hpp"

namespace flow::lua {

namespace {

constexpr size_t kTensorsLeft = size_t{1} << 20;  // bytes that may wait for the next collection

std::string shown_task(const AttemptRequest& request) {
  return tagged_name(request.task, request.tag);
}

// A dynamic task's calls are added to a separate graph.
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

}  // namespace

AttemptOutcome failed(std::string message) {
  AttemptOutcome outcome;
  outcome.kind = AttemptOutcome::Kind::failed;
  outcome.message = std::move(message);
  return outcome;
}

void ScriptState::begin_attempt(const AttemptRequest& request, AttemptHost& host) {
  context_.phase = ScriptPhase::task;
  context_.request = &request;
  context_.host = &host;
  context_.input_files.clear();
  sandbox_.unwind = Sandbox::Unwind::none;
  sandbox_.waited = false;
  sandbox_.random_seeded = false;
  sandbox_.seed = request.seed;
  sandbox_.walk_table = nullptr;
  if (!sandbox_.step_names.empty()) sandbox_.step_names.clear();
  if (!sandbox_.wait_names.empty()) sandbox_.wait_names.clear();
  sandbox_.step_path.clear();
  memory_.refused = false;
  tensors::Runtime& compute = tensors::runtime();
  compute.threads = std::max(1, static_cast<int>(request.cpus));
  compute.records = true;
  compute.casts = false;
  compute.precision = kernels::MatmulPrecision::highest;
  if (request.memory_bytes > 0 && memory_.tensors > 0) lua_gc(L_, LUA_GCCOLLECT);
  if (request.memory_bytes > 0)
    memory_.limit = memory_.used + memory_.tensors + static_cast<size_t>(request.memory_bytes);
}

// Sends the cause of the failure to the other ranks, and stops all use of this rank's tensors.
void ScriptState::end_comm(AttemptOutcome& outcome) {
  std::shared_ptr<Comm> comm = std::exchange(context_.comm, nullptr);
  if (comm == nullptr) return;
  bool has_failed = outcome.kind == AttemptOutcome::Kind::failed;
  outcome.lost_gang = has_failed && comm->has_failed();
  if (has_failed) comm->abort(context_.host->hidden(outcome.message));
  if (outcome.kind != AttemptOutcome::Kind::succeeded) return comm->leave();
  Status finished = comm->finish();
  if (finished.ok()) return;
  outcome = failed(finished.error().message);
  outcome.lost_gang = true;
}

void ScriptState::end_attempt() {
  memory_.limit = 0;
  end_gradient_hooks(L_);
  lua_settop(L_, 0);
  end_loaders();
  close_files(L_);
  flush_output(L_);
  bool holds_files = budget_->take_mapped();
  bool shares_gpus = context_.request != nullptr && context_.request->shares_gpus;
  if (memory_.tensors > kTensorsLeft || holds_files || shares_gpus) lua_gc(L_, LUA_GCCOLLECT);
  tensors::release_cached_memory(shares_gpus);
  context_.request = nullptr;
  context_.host = nullptr;
  context_.graph = &graph_;
}

// The values that the function returned start at 2.
void ScriptState::read_result(const AttemptRequest& request, const TaskObject& task,
                              AttemptOutcome& out) {
  const TaskDef& def = task.def;
  auto reject = [&](const std::string& problem) {
    out.kind = AttemptOutcome::Kind::failed;
    out.bad_result = true;
    out.message = fmt::format("{}:{}: {} {}", def.file, def.line, shown_task(request), problem);
  };
  int count = lua_gettop(L_) - 1;
  for (int extra = 3; extra <= count + 1; extra++) {
    if (lua_isnil(L_, extra)) continue;
    std::string second = kind_text(L_, extra);
    if (lua_type(L_, extra) == LUA_TSTRING) second = fmt::format("`{}`", lua_tostring(L_, extra));
    reject(
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
  if (!value.ok()) return reject(value.error().message);
  out.result = std::move(*value);
}

int ScriptState::attempt_body(lua_State* L) {
  auto& attempt = *static_cast<AttemptCall*>(lua_touserdata(L, 1));
  ScriptState& state = *attempt.state;
  const AttemptRequest& request = *attempt.request;
  const TaskObject& task = *state.graph_.tasks[request.ordinal];
  Sandbox& box = state.sandbox_;
  forget_printed(L);
  reset_output(L);
  if (Snapshot* snapshot = state.snapshots_[request.ordinal].get()) {
    snapshot->restore(L);
  } else {
    state.must_be_replaced_ = true;
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

AttemptOutcome ScriptState::attempt(const AttemptRequest& request, AttemptHost& host,
                                    bool is_service) {
  if (request.ordinal >= graph_.tasks.size())
    return failed(fmt::format("the script has no task number {}: it defines {}", request.ordinal,
                              graph_.tasks.size()));
  const TaskObject& task = *graph_.tasks[request.ordinal];
  if (task.function_ref == LUA_NOREF)
    return failed(fmt::format("`{}` is not a Lua task", task.def.name));
  AttemptOutcome outcome;
  TensorScope scope(budget_);
  cuda::ProductWarnings warnings([&host](const std::string& text) { host.warn(text); });
  begin_attempt(request, host);
  AttemptCall attempt{this, &request, &outcome, is_service};
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
      outcome.message = fmt::format("{}:{}: {} ran out of memory", task.def.file, task.def.line,
                                    shown_task(request));
      if (memory_.refused) {
        size_t granted = static_cast<size_t>(request.memory_bytes);
        outcome.message += fmt::format(
            ": its limit is {}, and its peak would be {}; raise the task's `memory`, or let it "
            "hold less at once",
            format_bytes(granted), format_bytes(memory_.rejected_peak - (limit - granted)));
      }
    }
  }
  outcome.waited = sandbox_.waited;
  // A GPU runs asynchronously: errors of work that was not waited for appear here.
  if (tensors::GpuFault fault = tensors::unseen_fault(); !fault.words.empty()) {
    if (outcome.kind != AttemptOutcome::Kind::failed)
      outcome = failed(fmt::format("{}:{}: {}: {}", task.def.file, task.def.line,
                                   shown_task(request), fault.words));
    outcome.lost_gpu = fault.is_lost;
    outcome.gpu_failed = fault.is_device;
  }
  bool serves = is_service && outcome.kind == AttemptOutcome::Kind::succeeded;
  if (!serves) end_comm(outcome);
  if (serves) {
    lua_settop(L_, 0);
    flush_output(L_);
  } else {
    end_attempt();
  }
  outcome.reached_outside = std::exchange(sandbox_.reached_outside, false);
  return outcome;
}

AttemptOutcome ScriptState::run(const AttemptRequest& request, AttemptHost& host) {
  return attempt(request, host, false);
}

// ---- services

// The values that the service's function returned start at 2.
void ScriptState::keep_service(const AttemptRequest& request, const TaskObject& task,
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
        task.def.file, task.def.line, shown_task(request), what);
    return;
  }
  service_ref_ = luaL_ref(L_, LUA_REGISTRYINDEX);
}

AttemptOutcome ScriptState::start_service(const AttemptRequest& request, AttemptHost& host) {
  service_request_ = request;
  must_be_replaced_ = true;  // no attempt may see the state that predictions leave
  return attempt(service_request_, host, true);
}

namespace {

void set_text(lua_State* L, const char* name, const std::string& text) {
  if (text.empty()) return;
  lua_pushlstring(L, text.data(), text.size());
  lua_setfield(L, -2, name);
}

void set_rows(lua_State* L, int64_t rows) {
  lua_pushinteger(L, rows);
  lua_setfield(L, -2, "rows");
}

void set_table(lua_State* L, const char* name, const Value& table) {
  if (table.is_nil()) return;
  push_value(L, table);
  lua_setfield(L, -2, name);
}

void set_request(lua_State* L, const PredictedRequest& request) {
  set_text(L, "id", request.id);
  set_text(L, "trace_id", request.trace_id);
  set_text(L, "traceparent", request.traceparent);
  set_table(L, "input_parameters", request.input_parameters);
  set_table(L, "output_parameters", request.output_parameters);
  // Always there, so that a script can look for one of them.
  if (request.parameters.is_nil()) lua_createtable(L, 0, 0);
  if (!request.parameters.is_nil()) push_value(L, request.parameters);
  lua_setfield(L, -2, "parameters");
}

/// The second argument of `predict`.
void push_requests(lua_State* L, const std::vector<PredictedRequest>& requests) {
  lua_createtable(L, 0, 5);
  lua_createtable(L, static_cast<int>(requests.size()), 0);
  int64_t rows = 0;
  for (size_t i = 0; i < requests.size(); i++) {
    lua_createtable(L, 0, 4);
    set_request(L, requests[i]);
    set_rows(L, requests[i].rows);
    lua_rawseti(L, -2, static_cast<lua_Integer>(i) + 1);
    rows += requests[i].rows;
  }
  lua_setfield(L, -2, "requests");
  set_rows(L, rows);
  if (requests.size() == 1) set_request(L, requests.front());
}

/// Whether the function on the top takes a second argument. Most do not, and it would cost them
/// time.
bool takes_second_argument(lua_State* L) {
  lua_Debug about;
  lua_pushvalue(L, -1);
  lua_getinfo(L, ">u", &about);
  return about.nparams > 1 || about.isvararg != 0;
}

}  // namespace

int ScriptState::predict_body(lua_State* L) {
  auto& prediction = *static_cast<PredictCall*>(lua_touserdata(L, 1));
  lua_rawgeti(L, LUA_REGISTRYINDEX, prediction.state->service_ref_);
  bool takes_requests = takes_second_argument(L);
  push_value(L, *prediction.inputs);
  if (takes_requests) push_requests(L, *prediction.requests);
  lua_call(L, takes_requests ? 2 : 1, 2);
  auto outputs = read_response(L, -2, "the result of predict");
  auto response = read_response(L, -1, "the second result of predict");
  if (!outputs.ok() || !response.ok())
    prediction.result = outputs.ok() ? response.error() : outputs.error();
  else
    prediction.result = PredictedValues{std::move(*outputs), std::move(*response)};
  return 0;
}

void ScriptState::collect() {
  TensorBudget::running(L_);
  budget_->collect();
}

Result<PredictedValues> ScriptState::predict(const Value& inputs,
                                             const std::vector<PredictedRequest>& requests) {
  if (service_ref_ == LUA_NOREF) return internal_error("no service has been started");
  PredictCall prediction{this, &inputs, &requests, internal_error("the prediction has no result")};
  context_.input_files.clear();
  TensorScope scope(budget_);
  tensors::NoRecord off;
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

}  // namespace flow::lua
