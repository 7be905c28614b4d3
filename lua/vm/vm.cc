// ScriptVm: loads a script, builds its plan, runs attempts. The first file to read in lua/.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "engine/base/errors.hpp"
#include "kernels/tensor/runtime.hpp"
#include "lua/tensor/memory_budget.hpp"
#include "lua/vm/script_state.hpp"

namespace flow::lua {

VmContext& context(lua_State* L) { return **static_cast<VmContext**>(lua_getextraspace(L)); }

namespace {

constexpr uint64_t kBuildSeed = 0;
constexpr int kUncollectedKib = 32 << 10;  // that a graph's Lua memory may use before it collects
constexpr size_t kSourceMax = size_t{16} << 20;  // bytes of one source file

void* allocate(void* self, void* old, size_t old_size, size_t size) {
  auto& memory = *static_cast<VmMemory*>(self);
  if (old == nullptr) old_size = 0;
  if (size == 0) {
    std::free(old);
    memory.used -= old_size;
    return nullptr;
  }
  size_t used = memory.used + memory.tensors.load(std::memory_order_relaxed);
  if (memory.limit != 0 && size > old_size && used + (size - old_size) > memory.limit) {
    memory.refused = true;
    memory.rejected_peak = used + (size - old_size);
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

// The pipeline that the script returned, at the top of the stack above `base`.
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

}  // namespace

ScriptState::ScriptState()
    : budget_(std::make_shared<TensorBudget>(held_memory_)), L_(lua_newstate(allocate, &memory_)) {
  FLOW_CHECK(L_ != nullptr);
  lua_atpanic(L_, panic);
  context_.sandbox = &sandbox_;
  context_.graph = &graph_;
  *static_cast<VmContext**>(lua_getextraspace(L_)) = &context_;
  sandbox_.files = &bundle_.files;
  sandbox_.seed = kBuildSeed;
}

ScriptState::~ScriptState() {
  TensorScope scope(budget_);
  lua_close(L_);
}

// ---- loading

void ScriptState::use_bundle(const Bundle& bundle) {
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

void ScriptState::use_folder(const std::string& root, const std::string& main,
                             const std::string& main_text) {
  context_.root = root;
  context_.main = main;
  bundle_.root = root;
  bundle_.main = main;
  sandbox_.source_folder = root;
  sandbox_.read_source = [root, main, main_text](const std::string& path) {
    if (path == main && !main_text.empty()) return std::optional<std::string>(main_text);
    return read_file(root + "/" + path);
  };
}

// Runs the script; its result is at the top, or an Error is returned.
Status ScriptState::load_main() {
  lua_State* L = L_;
  open_sandbox(L);
  std::optional<std::string> text = sandbox_.read_source(context_.main);
  if (!text)
    return user_error(fmt::format("cannot read the script `{}` in {}", context_.main,
                                  context_.root.empty() ? "its bundle" : context_.root));
  bundle_.files.emplace_back(context_.main, *text);
  FLOW_TRY(push_chunk(L, context_.main, *text));
  context_.phase = ScriptPhase::loading;
  int status = call_traced(L, 0, LUA_MULTRET);
  if (status != LUA_OK) return user_error(error_text(L, status));
  return {};
}

int ScriptState::load_body(lua_State* L) {
  auto& loading = *static_cast<LoadCall*>(lua_touserdata(L, 1));
  ScriptState& state = *loading.state;
  loading.status = state.load_main();
  if (!loading.status.ok()) return 0;
  lua_settop(L, 1);
  freeze_libraries(L);
  load_remaining(L, *loading.bundle);
  state.context_.phase = ScriptPhase::task;
  state.take_snapshots();
  return 0;
}

Status ScriptState::load(const Bundle& bundle) {
  use_bundle(bundle);
  sandbox_.silent = true;
  TensorScope scope(budget_);
  tensors::NoRecord off;  // tensors of the load are leaves for attempts
  LoadCall loading{this, &bundle, {}};
  lua_pushcfunction(L_, load_body);
  lua_pushlightuserdata(L_, &loading);
  int status = call_traced(L_, 1, 0);
  if (status != LUA_OK) loading.status = user_error(error_text(L_, status));
  lua_settop(L_, 0);
  return loading.status;
}

void ScriptState::take_snapshots() {
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

int ScriptState::build_body(lua_State* L) {
  auto& building = *static_cast<BuildCall*>(lua_touserdata(L, 1));
  ScriptState& state = *building.state;
  Status& status = building.status;
  const BuildRequest& request = *building.request;
  state.context_.list_inputs = request.list_inputs;
  int base = lua_gettop(L);
  status = state.load_main();
  if (!status.ok()) return 0;
  const PipelineObject* pipeline = returned_pipeline(L, base, status);
  if (pipeline == nullptr) return 0;
  if (request.describe) {
    describe_pipeline(*pipeline, state.graph_.plan);
    return 0;
  }
  freeze_libraries(L);
  fill_codes(L);
  Value params;
  std::vector<Error> errors = bind_params(*pipeline, request, state.context_.root, params);
  if (!errors.empty()) {
    status = joined_errors(errors);
    return 0;
  }
  state.context_.phase = ScriptPhase::building;
  status = run_body(L, state.graph_, *pipeline, params);
  if (status.ok() && request.tags) {
    state.context_.phase = ScriptPhase::building;
    status = tags_of_items(L, *request.tags, building.tags);
  }
  if (status.ok() && !request.resource_calls.empty()) {
    state.context_.phase = ScriptPhase::building;
    for (const ResourceCall& call : request.resource_calls)
      building.resources.push_back(resources_of_call(L, call));
  }
  return 0;
}

Result<BuildResult> ScriptState::build(const BuildRequest& request) {
  if (request.pinned != nullptr) {
    use_bundle(*request.pinned);
    if (!request.root.empty()) context_.root = bundle_.root = request.root;
  } else {
    use_folder(request.root, request.main, request.main_text);
  }
  // Most graphs need less memory than that, and their process then ends.
  lua_gc(L_, LUA_GCSTEP, -kUncollectedKib);
  TensorScope scope(budget_);
  tensors::NoRecord off;
  BuildCall building{this, &request, {}, {}, {}};
  lua_pushcfunction(L_, build_body);
  lua_pushlightuserdata(L_, &building);
  int status = call_traced(L_, 1, 0);
  if (status != LUA_OK) building.status = user_error(error_text(L_, status));
  lua_settop(L_, 0);
  flush_output(L_);
  FLOW_TRY(building.status);
  BuildResult result{std::move(graph_.plan), std::move(bundle_), std::move(building.tags),
                     std::move(building.resources)};
  for (std::string& warning : graph_.warnings) result.plan.warnings.push_back(std::move(warning));
  return result;
}

void fill_codes(lua_State* L) {
  for (const auto& task : context(L).graph->tasks) {
    if (task->function_ref == LUA_NOREF || !task->def.code.is_zero()) continue;
    lua_rawgeti(L, LUA_REGISTRYINDEX, task->function_ref);
    CanonicalCode code = canonical_code(L, -1);
    lua_pop(L, 1);
    task->def.code = code.digest;
    task->def.code_components = std::move(code.parts);
    task->def.gpu_kernel = std::move(code.gpu_kernel);
  }
  for (const auto& variant : context(L).graph->variants) {
    variant->def.code = variant->base->def.code;
    variant->def.code_components = variant->base->def.code_components;
    variant->def.gpu_kernel = variant->base->def.gpu_kernel;
  }
  forget_function_codes(L);
}

namespace {

// ---- the VM: one loaded state, replaced after an attempt that cannot be undone

class Vm : public ScriptVm {
 public:
  Result<BuildResult> build(const BuildRequest& request) override {
    ScriptState state;
    return state.build(request);
  }

  Status load(const Bundle& bundle) override {
    state_.reset();
    bundle_ = bundle;
    return load_again();
  }

  AttemptOutcome run(const AttemptRequest& request, AttemptHost& host) override {
    bool is_new = state_ == nullptr || state_->must_be_replaced();
    if (is_new) {
      Status loaded = load_again();
      if (!loaded.ok()) return failed(loaded.error().message);
    }
    AttemptOutcome outcome = state_->run(request, host);
    outcome.reached_outside |= is_new;  // includes effects of the last state's destruction
    return outcome;
  }

  AttemptOutcome start_service(const AttemptRequest& request, AttemptHost& host) override {
    Status loaded = load_again();
    if (!loaded.ok()) return failed(loaded.error().message);
    return state_->start_service(request, host);
  }

  Result<PredictedValues> predict(const Value& inputs,
                                  const std::vector<PredictedRequest>& requests) override {
    if (state_ == nullptr) return internal_error("no service has been started");
    return state_->predict(inputs, requests);
  }

  void collect() override {
    if (state_ != nullptr) state_->collect();
  }

  void end_service() override { state_.reset(); }

 private:
  Status load_again() {
    auto fresh = std::make_unique<ScriptState>();
    FLOW_TRY(fresh->load(bundle_));
    state_ = std::move(fresh);
    return {};
  }

  Bundle bundle_;
  std::unique_ptr<ScriptState> state_;
};

}  // namespace

}  // namespace flow::lua

namespace flow {

std::unique_ptr<ScriptVm> make_script_vm() { return std::make_unique<lua::Vm>(); }

}  // namespace flow
