// Shared within lua/: the interfaces between the VM, the graph surface, the value conversion and
// the libraries. One thread, one lua_State.
#pragma once
#include <lua.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lua/state/script.hpp"

namespace flow::lua {

/// All data of one lua_State; at `context(L)`.
struct VmContext;
struct GraphBuilder;
struct Sandbox;       // sandbox/sandbox.hpp
class Comm;           // context/comm.hpp
class GradientHooks;  // tensor/gradient_hooks.hpp

enum class ScriptPhase : uint8_t { loading, building, task };

struct VmContext {
  ScriptPhase phase = ScriptPhase::loading;
  std::string root, main;                   // the script's folder and file
  GraphBuilder* graph = nullptr;            // loading and building; also in a dynamic task
  const AttemptRequest* request = nullptr;  // in a task
  AttemptHost* host = nullptr;              // in a task
  InputLister list_inputs;                  // building
  std::map<std::string, File> input_files;  // in a task: absolute path -> its file value
  Sandbox* sandbox = nullptr;
  std::shared_ptr<Comm> comm;            // in a task that has used ctx.comm
  std::shared_ptr<GradientHooks> hooks;  // in a task that has set one
};
VmContext& context(lua_State* L);
/// Call before every external effect: returns once the attempt's start is durable.
void wait_durable(lua_State* L);

// ---- context/value_conversion.cc
// -------------------------------------------------------------------------------------------
/// Pushes `value`. In a task a File becomes an absolute path (and is added to input_files); while
/// building it is a file userdata. A Tensor becomes a tensor userdata. Refs become handles
/// (building only). Raises a Lua error on failure.
void push_value(lua_State* L, const Value& value);
/// Reads the value at `index`. `where` names the root ("result", "argument 1"); the Error names the
/// path and the reason: "returned a function at result.layers[2].forward". In a task, strings that
/// equal an input path become that file again, and each tensor's bytes are stored through the host.
/// Handles are allowed only with `allow_refs`.
Result<Value> read_value(lua_State* L, int index, const std::string& where, bool allow_refs);
/// The same for a checkpoint: its tensors are copies without a digest, and nothing is
/// stored.
Result<Value> read_snapshot(lua_State* L, int index, const std::string& where);
/// The same, but its tensors may be the script's own memory: use them before it can change.
Result<Value> read_response(lua_State* L, int index, const std::string& where);
// flow.null and flow.missing are the light userdata of these addresses
extern const char kNullKey, kMissingKey;
/// Userdata "flow.file": a File value. test_file returns null for other values.
void push_file(lua_State* L, const File& file);
const File* test_file(lua_State* L, int index);
/// Raises `message` with the file and line of the nearest Lua function.
[[noreturn]] void raise(lua_State* L, const std::string& message);

// ---- tensor/tensor.cc (kernels' Lua face)
// --------------------------------------------------------------------------
void open_tensor(lua_State* L, int flow_table);        // flow.tensor, flow.zeros, …
void open_kernels(lua_State* L, int flow_table);       // flow.kernel
void push_tensor(lua_State* L, const Tensor& tensor);  // bytes from tensor.data or the host
bool is_tensor(lua_State* L, int index);
/// `shared` and `borrowed` bytes may be the tensor's own memory: use them before it can change.
enum class TensorRead : uint8_t { shared, borrowed, unnamed };
/// Contiguous bytes in .data. Only `shared` sets the digest. `unnamed` copies. Throws a
/// tensors::TensorError if memory is missing.
Tensor read_tensor(lua_State* L, int index, TensorRead how);
/// For the restore of upvalues: bytes of a load-time tensor, and writing them back.
std::string tensor_bytes(lua_State* L, int index);
/// Drops the gradient that backward left, which is not part of the bytes.
void forget_gradient(lua_State* L, int index);
void restore_tensor(lua_State* L, int index, const std::string& bytes);

// ---- libraries
// ------------------------------------------------------------------------------------------------
void open_data(lua_State* L,
               int flow_table);  // flow.data, flow.text, flow.table, flow.json, flow.fs, flow.image

// ---- graph_builder.cc
// ---------------------------------------------------------------------------------------------------
/// A task, shell task, dynamic task, service or native task as the script defined it. Userdata
/// "flow.task" holds a pointer.
struct GraphBuilder;
struct TaskObject {
  TaskDef def;  // `code` is filled by the VM (canonical code) before the build ends, but of shell
                // tasks here
  int function_ref = LUA_NOREF;  // registry reference; none for shell and native
  // Registry references of the functions for resource options (ResourceFunction).
  std::map<uint8_t, int> resource_functions;
  // Of `task:with { … }`: the task that it is made of, and its index in the `variants` of the
  // GraphBuilder that owns both.
  const TaskObject* base = nullptr;
  const GraphBuilder* owner = nullptr;
  uint32_t variant = 0;
  const TaskObject* gate = nullptr;  // of a service: the task that decides about its canary
};
/// A parameter, and where the script describes it: "pipeline.lua:3: ".
struct Parameter {
  ParamSpec spec;
  std::string where;
};
struct PipelineObject {
  std::string name, where;
  std::vector<Parameter> params;
  int body_ref = LUA_NOREF;
};
struct GraphBuilder {
  std::vector<std::unique_ptr<TaskObject>> tasks;     // ordinal = index
  std::vector<std::unique_ptr<TaskObject>> variants;  // tasks with other options; all differ
  std::map<std::string, uint32_t> variant_of;         // ordinal and options -> index in variants
  std::vector<std::unique_ptr<PipelineObject>> pipelines;
  Plan plan;  // nodes while building; only used defs, in order of use
  std::map<const TaskObject*, uint32_t> def_of;  // index in plan.defs
  std::map<std::string, uint32_t> calls;  // name prefix/task -> number of calls, for "train#2"
  std::string prefix;                     // of an inlined pipeline: "inner/"
  Guard guard;                            // innermost branch being built
  std::vector<std::string> warnings;
  std::map<std::string, size_t> ordinals;     // file, NUL, name of a task -> index in tasks
  std::vector<const TaskObject*> node_tasks;  // of each node; null for a when
  // Parts of handles: each is a step from another part (at 0, the whole result).
  std::vector<std::pair<uint32_t, PathStep>> parts{{}};
  std::map<std::pair<uint32_t, uint32_t>, uint32_t>
      after_lines;                            // (later, earlier) of :after calls
  std::map<std::string, std::string> tagged;  // tagged_name -> name of the node or the instance
  std::map<uint32_t, int> tag_functions;      // of maps over handles: registry references
};
/// In a dynamic task: phase is `task`, context(L).graph is a fresh GraphBuilder of that attempt
/// (the load's one still owns the tasks), its `prefix` is ctx.task + "/", and each node's `def` is
/// the TaskDef::ordinal. A plan that uses a dynamic task has all tasks in `defs`, by ordinal, and
/// then all variants, so both use the same numbers. In other tasks context(L).graph is null.
///
/// Adds flow.task, shell, map, when, dynamic, service, native, pipeline, param.*, file, env. They
/// raise Lua errors with file, line, the expected value and the nearest correct name.
void open_graph(lua_State* L, int flow_table);
const TaskObject* test_task(lua_State* L, int index);  // null for other values
const PipelineObject* test_pipeline(lua_State* L, int index);
bool is_handle(lua_State* L, int index);
/// "handle train.x[1]", as print shows it. "" if the value is not a handle.
std::string describe_handle(lua_State* L, int index);
/// Raises the error of a handle used by `use`: "pairs", "ipairs", "next", "tostring", "%s". No
/// effect for other values.
void reject_handle(lua_State* L, int index, const char* use);
/// Checks given parameters against the schema and converts text ones. Errors name the parameter and
/// the nearest one. `root`: the script's folder, where relative paths in defaults start.
std::vector<Error> bind_params(const PipelineObject& pipeline, const BuildRequest& request,
                               const std::string& root, Value& out);
/// Fills in the pipeline's name and parameters.
void describe_pipeline(const PipelineObject& pipeline, Plan& plan);
/// Runs the pipeline's body with bound parameters, fills graph.plan (nodes, defs, result). Errors
/// as Lua raised them. The body must not change objects that it reaches, except those reachable
/// from package.loaded: required modules and libraries.
Status run_body(lua_State* L, GraphBuilder& graph, const PipelineObject& pipeline,
                const Value& params);
/// Describes a cycle through :after, with file and line, or "". Called by run_body and by the
/// attempt of a dynamic task.
std::string find_cycle(const GraphBuilder& graph);

// ---- vm/canonical_code.cc
// -----------------------------------------------------------------------------------------------------
/// The canonical code of the function at `index` with its key components.
struct CanonicalCode {
  Digest digest;
  std::vector<CodeComponent> parts;
  std::string gpu_kernel;  // a reachable kernel without fallback
};
CanonicalCode canonical_code(lua_State* L, int index);

// ---- vm/upvalue_snapshot.cc
// ---------------------------------------------------------------------------------------------------
/// The objects that a task can reach, as the load left them; `restore` resets every table, upvalue
/// and tensor.
class Snapshot {
 public:
  static std::unique_ptr<Snapshot> take(lua_State* L, int function_index);
  virtual ~Snapshot() = default;
  virtual void restore(lua_State* L) = 0;
};

// ---- sandbox/sandbox.cc
// ---------------------------------------------------------------------------------------------------
/// Opens the libraries of scripts, with strict globals, ordered pairs/next, stable sort, numbered
/// tostring, our require.
void open_sandbox(lua_State* L);
void freeze_libraries(lua_State* L);  // after the load
/// The name of a library function ("string.format", "flow.map") for keys and messages, or "" for a
/// user's function.
std::string library_name(lua_State* L, int index);

// ---- context/context.cc
// ---------------------------------------------------------------------------------------------------
/// Pushes the ctx of an attempt. ctx:wait and a stop at ctx:step/checkpoint unwind with a private
/// error value that is recognized even through the script's pcall.
void push_task_context(lua_State* L);

// ---- context/comm_calls.cc
// ---------------------------------------------------------------------------------------------------
/// Pushes ctx.comm.
void push_comm(lua_State* L);

// ---- keys.cc
/// Pushes the list of the keys of the table at `index` in the order of pairs; returns their number.
size_t push_ordered_keys(lua_State* L, int index);

}  // namespace flow::lua
