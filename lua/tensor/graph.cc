// flow.graph(f): calls f, and from the second call on with arguments of the same kind, launches a
// CUDA graph of what f did.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "kernels/tensor/capture.hpp"
#include "lua/sandbox/sandbox.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using tensors::Device;
using tensors::Tensor;

const char kGraphKey = 0;      // the metatable
const char kFollowersKey = 0;  // the functions of flow.at_replay, while a graph is recorded

constexpr size_t kGraphsMax = 8;  // of one function
constexpr size_t kSeenMax = 64;

// One graph, for one kind of arguments. Its Lua values are the table at `number` of the user value:
// [0] functions of flow.at_replay, [1] … results that are no tensors, [-1] … arguments.
struct RecordedCall {
  std::string kind;
  lua_Integer number = 0;
  uint64_t last_use = 0;
  std::unique_ptr<tensors::Graph> graph;
  std::vector<Tensor> inputs;   // the arguments that are tensors
  std::vector<Tensor> results;  // empty: a value that is no tensor
  std::vector<size_t> draws;    // words of the graph that are random seeds
};

// A kind of arguments of earlier calls.
struct SeenKind {
  std::string kind;
  Device device;  // of its graph; the CPU: it has none
  bool is_too_large = false;
};

// The userdata. User value 1: a table of the function at 0, and of RecordedCalls.
struct GraphFunction {
  std::vector<std::shared_ptr<RecordedCall>> calls;
  std::vector<SeenKind> seen;
  uint64_t uses = 0;
};

thread_local int depth = 0;                             // of calls of such functions
thread_local tensors::GraphWords* launching = nullptr;  // while functions of at_replay run

class DepthScope {
 public:
  DepthScope() { depth++; }
  ~DepthScope() { depth--; }
  DepthScope(const DepthScope&) = delete;
  DepthScope& operator=(const DepthScope&) = delete;
};

// ---- random numbers

using RandomWords = std::array<uint64_t, 4>;

RandomWords random_words(const Sandbox& box) {
  RandomWords words{};
  if (box.random_seeded) std::copy(box.random, box.random + words.size(), words.begin());
  return words;
}

// The seeds that a recording draws. A function that is repeated with an earlier state, as by
// flow.checkpoint, draws the same again.
class RecordedDraws {
 public:
  explicit RecordedDraws(lua_State* L)
      : box_(sandbox(L)), before_(current), first_(random_words(box_)), next_(first_) {
    was_seeded_ = box_.random_seeded;
    box_.no_random =
        "math.random in the function of flow.graph would give the same number in each launch: pass "
        "the number as a tensor, or draw tensors, as by flow.rand";
    current = this;
  }
  ~RecordedDraws() {
    box_.no_random = nullptr;
    current = before_;
  }
  RecordedDraws(const RecordedDraws&) = delete;
  RecordedDraws& operator=(const RecordedDraws&) = delete;

  kernels::Seed draw(lua_State* L) {
    RandomWords state = random_words(box_);
    const char* why = std::exchange(box_.no_random, nullptr);
    uint64_t value = draw_seed(L);
    box_.no_random = why;
    tensors::GraphWords& words = tensors::runtime().capture->words();
    auto known = words_.find(state);
    if (known == words_.end()) {
      is_in_order_ = is_in_order_ && state == next_;
      known = words_.emplace(state, words.take(1)).first;
      words.set(known->second, value);
      draws.push_back(known->second);
      next_ = random_words(box_);
    }
    return {value, reinterpret_cast<const uint64_t*>(words.address(known->second))};
  }
  /// Whether the same draws, one after another, have the same effect on math.random.
  bool can_repeat() const { return is_in_order_ && random_words(box_) == next_; }
  void put_back() {
    std::copy(first_.begin(), first_.end(), box_.random);
    box_.random_seeded = was_seeded_;
  }

  std::vector<size_t> draws;  // their words, in order
  static thread_local RecordedDraws* current;

 private:
  Sandbox& box_;
  RecordedDraws* before_;
  RandomWords first_, next_;
  bool was_seeded_ = false, is_in_order_ = true;
  std::map<RandomWords, size_t> words_;  // by the state before
};
thread_local RecordedDraws* RecordedDraws::current = nullptr;

// ---- arguments

// Everything that the operations of a call depend on, except the elements of tensors.
std::string kind_of_call(lua_State* L, int first, int last) {
  const tensors::Runtime& now = tensors::runtime();
  std::string kind = fmt::format("{} {} {} {};", now.records, now.casts,
                                 static_cast<int>(now.cast_type), static_cast<int>(now.precision));
  for (int index = first; index <= last; index++) {
    if (const Tensor* x = test_object(L, index)) {
      kind += tensors::text_of(*x);
    } else if (lua_isinteger(L, index)) {
      kind += fmt::format("{}", lua_tointeger(L, index));
    } else if (lua_type(L, index) == LUA_TNUMBER) {
      kind += fmt::format("{:a}", lua_tonumber(L, index));
    } else if (lua_type(L, index) == LUA_TSTRING) {
      size_t length = 0;
      const char* text = lua_tolstring(L, index, &length);
      kind += fmt::format("\"{} {}", length, std::string_view(text, length));
    } else if (lua_isboolean(L, index)) {
      kind += lua_toboolean(L, index) ? "true" : "false";
    } else {
      kind += fmt::format("{} {}", luaL_typename(L, index), lua_topointer(L, index));
    }
    kind += ';';
  }
  return kind;
}

// Replaces tensors by dense ones without a history: what a graph's inputs are.
void prepare_arguments(lua_State* L, int first, int last) {
  tensors::NoRecord off;
  for (int index = first; index <= last; index++) {
    const Tensor* x = test_object(L, index);
    if (lua_istable(L, index) && luaL_getmetafield(L, index, "__index") == LUA_TNIL)
      raise(L,
            fmt::format("argument {} of a function of flow.graph is a table, whose tensors a graph "
                        "would not read again: pass them one by one",
                        index - first + 1));
    if (x == nullptr) continue;
    if (x->is_tracked())
      raise(L,
            fmt::format("argument {} of a function of flow.graph wants a gradient, which a graph "
                        "does not pass on: pass x:detach()",
                        index - first + 1));
    if (kernels::is_dense(x->view())) continue;
    push_object(L, tensors::contiguous(*x));
    lua_replace(L, index);
  }
}

// Of the tensors among the arguments.
std::optional<Device> device_of_arguments(lua_State* L, int first, int last) {
  std::optional<Device> device;
  for (int index = first; index <= last; index++) {
    const Tensor* x = test_object(L, index);
    if (x == nullptr) continue;
    if (device && !(*device == x->device()))
      raise(L,
            fmt::format("the tensors that are passed to a function of flow.graph are on different "
                        "devices, {} and {}: move them to one",
                        tensors::text_of(*device), tensors::text_of(x->device())));
    device = x->device();
  }
  return device;
}

// ---- calls

GraphFunction& check_graph(lua_State* L, int index) {
  return *static_cast<GraphFunction*>(lua_touserdata(L, index));
}

// Pushes the function of the userdata at 1.
void push_function(lua_State* L) {
  lua_getiuservalue(L, 1, 1);
  lua_rawgeti(L, -1, 0);
  lua_remove(L, -2);
}

// Pushes the Lua values of a call.
void push_values(lua_State* L, const RecordedCall& call) {
  lua_getiuservalue(L, 1, 1);
  lua_rawgeti(L, -1, call.number);
  lua_remove(L, -2);
}

// While it lives, runtime().used_gpus has the GPUs that were used since.
class UsedGpus {
 public:
  UsedGpus() : before_(std::exchange(tensors::runtime().used_gpus, 0)) {}
  ~UsedGpus() { tensors::runtime().used_gpus |= before_; }
  UsedGpus(const UsedGpus&) = delete;
  UsedGpus& operator=(const UsedGpus&) = delete;
  /// The first, or the CPU.
  static Device first() {
    uint64_t used = tensors::runtime().used_gpus;
    return used == 0 ? Device{} : Device{Device::cuda, std::countr_zero(used)};
  }

 private:
  uint64_t before_;
};

// Calls the function with the arguments 2 to `last`; returns the number of results.
int call_function(lua_State* L, int last) {
  int base = lua_gettop(L);
  push_function(L);
  for (int index = 2; index <= last; index++) lua_pushvalue(L, index);
  lua_call(L, last - 1, LUA_MULTRET);
  return lua_gettop(L) - base;
}

// The same, and the results are copies without a history, as those of a launch.
int call_eagerly(lua_State* L, int last) {
  DepthScope scope;
  int count = call_function(L, last);
  for (int index = lua_gettop(L) - count + 1; index <= lua_gettop(L); index++) {
    const Tensor* x = test_object(L, index);
    if (x == nullptr) continue;
    tensors::NoRecord off;
    push_object(L, x->device().kind == Device::cuda ? tensors::copy_of(*x) : x->detached());
    lua_replace(L, index);
  }
  return count;
}

// Pushes a table for the call and stores it in the user value.
void push_new_values(lua_State* L, RecordedCall& call, GraphFunction& function) {
  call.number = 1;
  for (const auto& each : function.calls) call.number = std::max(call.number, each->number + 1);
  lua_getiuservalue(L, 1, 1);
  lua_createtable(L, 4, 1);
  lua_pushvalue(L, -1);
  lua_rawseti(L, -3, call.number);
  lua_remove(L, -2);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kFollowersKey);
  lua_rawseti(L, -2, 0);
}

// Calls the functions at 1 or 2 of each follower in the table at the top, and pops it.
void call_followers(lua_State* L, int which) {
  int list = lua_gettop(L);
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, list)); i++) {
    lua_rawgeti(L, list, i);
    if (lua_rawgeti(L, -1, which) != LUA_TNIL) lua_call(L, 0, 0);
    lua_settop(L, list);
  }
  lua_pop(L, 1);
}

// Pushes the arguments of the recording: inputs of the graph in place of tensors.
void push_inputs(lua_State* L, int last, RecordedCall& call, const Device& device) {
  for (int index = 2; index <= last; index++) {
    if (const Tensor* x = test_object(L, index)) {
      call.inputs.push_back(Tensor::empty(x->dtype(), x->shape(), device));
      push_object(L, call.inputs.back());
    } else {
      lua_pushvalue(L, index);
    }
  }
}

// Of the values from `first` to the top. `values` is the call's table.
void keep_results(lua_State* L, int first, int values, const Device& device, RecordedCall& call) {
  for (int index = first; index <= lua_gettop(L); index++) {
    const Tensor* x = test_object(L, index);
    if (x != nullptr && !(x->device() == device))
      raise(L, fmt::format("the function of flow.graph returned {}, and its graph is on {}: return "
                           "tensors of that device",
                           tensors::text_of(*x), tensors::text_of(device)));
    if (x == nullptr && (lua_istable(L, index) || lua_type(L, index) == LUA_TUSERDATA))
      raise(L, fmt::format("the function of flow.graph returned {}: it returns tensors, numbers, "
                           "strings and booleans, one by one",
                           describe(L, index)));
    call.results.push_back(x == nullptr ? Tensor() : x->detached());
    lua_pushvalue(L, index);
    if (x != nullptr) {
      lua_pop(L, 1);
      lua_pushnil(L);
    }
    lua_rawseti(L, values, index - first + 1);
  }
}

void check_inputs_unchanged(lua_State* L, const RecordedCall& call) {
  for (size_t i = 0; i < call.inputs.size(); i++)
    if (call.inputs[i].storage()->version != 0)
      raise(L,
            fmt::format("the function of flow.graph changed its tensor argument {} in place, "
                        "which is a copy: change a tensor that it captures, or return the result",
                        i + 1));
}

// What follows the call of the function in a recording; runs protected.
struct FinishedCall {
  RecordedCall* call;
  tensors::Capture* capture;
  RecordedDraws* draws;
  int last, values;
};

int run_recorded(lua_State* L) {
  auto& now = *static_cast<FinishedCall*>(lua_touserdata(L, 2));
  lua_settop(L, 3);  // the graph, the call, its values; then the arguments
  luaL_checkstack(L, now.last + 8, "too many arguments");
  push_function(L);
  for (int i = 1; i < now.last; i++) lua_rawgeti(L, 3, -i);
  lua_call(L, now.last - 1, LUA_MULTRET);
  keep_results(L, 4, 3, now.capture->device(), *now.call);
  check_inputs_unchanged(L, *now.call);
  if (!now.draws->can_repeat())
    raise(L, "the function of flow.graph sets the state of math.random, which its launches do not");
  return 0;
}

// Calls the function in a recording, with the arguments at the top: pushes nothing, or an error.
int call_recorded(lua_State* L, FinishedCall& now) {
  for (int i = now.last - 1; i >= 1; i--) lua_rawseti(L, now.values, -i);
  lua_pushcfunction(L, protected_call<run_recorded>);
  lua_pushvalue(L, 1);
  lua_pushlightuserdata(L, &now);
  lua_pushvalue(L, now.values);
  return lua_pcall(L, 3, 0, 0);
}

// As lua_pcall(), of a function of this program.
template <typename Function>
int guarded(lua_State* L, const Function& run) {
  try {
    run();
    return LUA_OK;
  } catch (const tensors::TensorError& failure) {
    lua_pushstring(L, failure.what());
    return LUA_ERRRUN;
  }
}

void forget_values(lua_State* L, const RecordedCall& call) {
  lua_getiuservalue(L, 1, 1);
  lua_pushnil(L);
  lua_rawseti(L, -2, call.number);
  lua_pop(L, 1);
}

void drop_oldest(lua_State* L, GraphFunction& function) {
  auto oldest =
      std::min_element(function.calls.begin(), function.calls.end(),
                       [](const auto& a, const auto& b) { return a->last_use < b->last_use; });
  forget_values(L, **oldest);
  function.calls.erase(oldest);
}

// Records the call with the arguments 2 to `last`. Null if the GPU has no room for the graph.
std::shared_ptr<RecordedCall> record(lua_State* L, GraphFunction& function, int last,
                                     const Device& device, std::string kind) {
  auto made = std::make_shared<RecordedCall>();
  RecordedCall& call = *made;
  call.kind = std::move(kind);
  push_new_values(L, call, function);
  int values = lua_gettop(L);
  DepthScope scope;
  int status = LUA_OK;
  bool was_full = false;
  {
    tensors::Capture capture(device);
    RecordedDraws draws(L);
    FinishedCall now{&call, &capture, &draws, last, values};
    status = guarded(L, [&] { push_inputs(L, last, call, device); });
    if (status == LUA_OK) status = call_recorded(L, now);
    if (status == LUA_OK) status = guarded(L, [&] { call.graph = capture.end(); });
    if (status != LUA_OK) draws.put_back();
    was_full = capture.memory()->was_full();
    call.draws = std::move(draws.draws);
  }
  lua_pushnil(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kFollowersKey);
  if (status != LUA_OK) {
    lua_rawgeti(L, values, 0);
    call_followers(L, 2);
    forget_values(L, call);
    if (!was_full || lua_type(L, -1) != LUA_TSTRING) lua_error(L);
    write_line(L, fmt::format("flow.graph: {} has no room for a graph, so its function is called "
                              "each time: {}",
                              tensors::text_of(device), lua_tostring(L, -1)));
    lua_settop(L, values - 1);
    return nullptr;
  }
  lua_settop(L, values - 1);
  if (function.calls.size() >= kGraphsMax) drop_oldest(L, function);
  function.calls.push_back(made);
  return made;
}

// What a launch needs in addition to the arguments: seeds, and what functions of at_replay set.
void prepare_launch(lua_State* L, RecordedCall& call) {
  struct LaunchScope {
    explicit LaunchScope(tensors::GraphWords& words) : before(std::exchange(launching, &words)) {}
    ~LaunchScope() { launching = before; }
    tensors::GraphWords* before;
  } scope(call.graph->words());
  for (size_t word : call.draws) call.graph->words().set(word, draw_seed(L));
  push_values(L, call);
  lua_rawgeti(L, -1, 0);
  call_followers(L, 1);
  lua_pop(L, 1);
}

// Copies, so that the next launch leaves them as they are.
int push_results(lua_State* L, const RecordedCall& call) {
  push_values(L, call);
  int values = lua_gettop(L);
  luaL_checkstack(L, static_cast<int>(call.results.size()) + 8, "too many results");
  for (size_t i = 0; i < call.results.size(); i++) {
    if (call.results[i])
      push_object(L, tensors::copy_of(call.results[i]));
    else
      lua_rawgeti(L, values, static_cast<lua_Integer>(i) + 1);
  }
  return static_cast<int>(call.results.size());
}

int launch(lua_State* L, GraphFunction& function, int last, RecordedCall& call) {
  call.last_use = ++function.uses;
  tensors::NoRecord off;
  size_t i = 0;
  for (int index = 2; index <= last; index++)
    if (const Tensor* x = test_object(L, index)) tensors::copy_in_place(call.inputs[i++], *x);
  call.graph->launch();
  return push_results(L, call);
}

// A launch of what was recorded by an earlier call. The functions of at_replay may call the graph.
int repeat(lua_State* L, GraphFunction& function, int last, std::shared_ptr<RecordedCall> call) {
  DepthScope scope;
  prepare_launch(L, *call);
  if (!call->graph->fits())
    raise(L,
          "a function of flow.at_replay changed a gradient to which the function of flow.graph "
          "adds: change it before the call");
  return launch(L, function, last, *call);
}

int call_graph(lua_State* L) {
  GraphFunction& function = check_graph(L, 1);
  int last = lua_gettop(L);
  luaL_checkstack(L, last + 20, "too many arguments");
  // Within another one it is part of that one's graph.
  if (depth > 0 || tensors::runtime().capture != nullptr) return call_function(L, last);
  prepare_arguments(L, 2, last);
  std::optional<Device> device = device_of_arguments(L, 2, last);
  if (device && device->kind != Device::cuda) return call_eagerly(L, last);
  std::string kind = kind_of_call(L, 2, last);
  for (const std::shared_ptr<RecordedCall>& each : function.calls)
    if (each->kind == kind && each->graph->fits()) return repeat(L, function, last, each);
  auto known = std::find_if(function.seen.begin(), function.seen.end(),
                            [&](const SeenKind& each) { return each.kind == kind; });
  if (known != function.seen.end() && known->device.kind == Device::cuda && !known->is_too_large) {
    if (auto made = record(L, function, last, known->device, kind))
      return launch(L, function, last, *made);
    known->is_too_large = true;
  }
  // Without tensors as arguments the graph is on the GPU that the function uses now.
  UsedGpus used;
  int count = call_eagerly(L, last);
  if (known == function.seen.end()) {
    if (function.seen.size() >= kSeenMax) function.seen.erase(function.seen.begin());
    function.seen.push_back({std::move(kind), {}});
    known = std::prev(function.seen.end());
  }
  known->device = device.value_or(UsedGpus::first());
  return count;
}

int drop_graph(lua_State* L) {
  check_graph(L, 1).~GraphFunction();
  new (lua_touserdata(L, 1)) GraphFunction;
  return 0;
}

// flow.graph(f)
int make_graph(lua_State* L) {
  if (!is_callable(L, 1))
    raise(L, fmt::format("flow.graph takes a function, not {}", describe(L, 1)));
  if (lua_gettop(L) > 1)
    raise(L, fmt::format("flow.graph takes a function only, not also {}", describe(L, 2)));
  if (context(L).phase != ScriptPhase::task)
    raise(L, "flow.graph is called in a task, which then calls its result");
  new (lua_newuserdatauv(L, sizeof(GraphFunction), 1)) GraphFunction;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kGraphKey) != LUA_TTABLE) {
    lua_pop(L, 1);
    luaL_Reg own[] = {
        {"__call", protected_call<call_graph>}, {"__gc", drop_graph}, {nullptr, nullptr}};
    luaL_newlib(L, own);
    lua_pushliteral(L, "graph");
    lua_setfield(L, -2, "__name");
    lua_pushboolean(L, false);
    lua_setfield(L, -2, "__metatable");
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &kGraphKey);
  }
  lua_setmetatable(L, -2);
  lua_createtable(L, 0, 1);
  lua_pushvalue(L, 1);
  lua_rawseti(L, -2, 0);
  lua_setiuservalue(L, -2, 1);
  return 1;
}

// flow.at_replay(f [, undo])
int add_follower(lua_State* L) {
  if (!is_callable(L, 1) || !(lua_isnoneornil(L, 2) || is_callable(L, 2)))
    raise(L, fmt::format("flow.at_replay takes a function, and one that undoes it, not {}",
                         describe(L, is_callable(L, 1) ? 2 : 1)));
  if (tensors::runtime().capture == nullptr) return 0;
  lua_settop(L, 2);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kFollowersKey);
  lua_createtable(L, 2, 0);
  for (int i = 1; i <= 2; i++) {
    lua_pushvalue(L, i);
    lua_rawseti(L, -2, i);
  }
  lua_rawseti(L, 3, static_cast<lua_Integer>(lua_rawlen(L, 3)) + 1);
  return 0;
}

int is_capturing(lua_State* L) {
  lua_pushboolean(L, tensors::runtime().capture != nullptr);
  return 1;
}

}  // namespace

kernels::Seed recorded_seed(lua_State* L) {
  RecordedDraws* draws = RecordedDraws::current;
  return draws == nullptr ? kernels::Seed(draw_seed(L)) : draws->draw(L);
}

tensors::GraphWords& replayed_words(lua_State* L) {
  if (launching == nullptr) raise(L, "only a function of flow.at_replay sets what a launch reads");
  return *launching;
}

void open_tensor_graphs(lua_State* L, int flow_table) {
  luaL_Reg functions[] = {{"graph", protected_call<make_graph>},
                          {"at_replay", add_follower},
                          {"is_capturing", is_capturing},
                          {nullptr, nullptr}};
  lua_pushvalue(L, flow_table);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

}  // namespace flow::lua
