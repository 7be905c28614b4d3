// Shared by the files of the graph surface: handles, script locations, and nodes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lua/state/vm_context.hpp"

namespace flow::lua {

constexpr uint32_t kWholeResult = 0;  // index in GraphBuilder::parts

/// A future result, or a part of it. Userdata; trivially copyable, because a body may make 100,000.
struct Handle {
  const GraphBuilder* graph;
  uint32_t node;
  uint32_t part;
};

/// `h.after` before it is called. Userdata; its user value 1 is the handle.
struct Method {
  const char* name;
};

/// Which handles a value may contain.
enum class Refs : uint8_t {
  none,
  results,     // arguments: no services
  everything,  // results: services too
};

// ---- userdata by the address of their key, which is quicker than luaL_checkudata's name

/// Makes the metatable of `key` with __name and pushes it; false if it existed.
bool new_metatable(lua_State* L, const void* key, const char* name);
void set_metatable(lua_State* L, const void* key);  // of the userdata at the top
void* test_object(lua_State* L, int index, const void* key);

extern const char kHandleKey, kMethodKey, kTaskKey, kPipelineKey, kParamKey, kEnvKey, kParamsKey;

// ---- places

/// File and line of the nearest Lua function; line 0 if there is none.
struct ScriptLocation {
  std::string file;
  uint32_t line = 0;
};
/// Whether the frame (of lua_getinfo "S") is of a function of the stdlib.
bool is_stdlib(const lua_Debug& frame);
ScriptLocation current_location(lua_State* L);
uint32_t current_line(lua_State* L);
std::string text_of(const ScriptLocation& place);  // "pipeline.lua:12: ", or ""
/// "a string", "a table", "a handle", "a task": the kind of the value at `index`, for messages.
std::string kind_text(lua_State* L, int index);
/// " (did you mean `retries`?)" or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);
std::string join(const std::vector<std::string>& words, const char* between = ", ");

// ---- values

/// Like read_value. With `argument` > 0 the error names "argument N", otherwise `where`. `depth`
/// counts the tables around the value.
Result<Value> read_graph_value(lua_State* L, int index, const char* where, int argument, Refs refs,
                               int depth = 0);
/// The values from `first` to the top, as a task's arguments.
Result<std::vector<Value>> read_graph_arguments(lua_State* L, int first);

// ---- graph/handle.cc
void open_handles(lua_State* L);
void push_handle(lua_State* L, const GraphBuilder& graph, uint32_t node,
                 uint32_t part = kWholeResult);
/// The handle at `index`, of the graph being built, or null. Raises for a handle of another graph.
const Handle* test_handle(lua_State* L, int index);
bool is_alive(const VmContext& ctx, const Handle& handle);  // made by the body that runs
Value ref_of(const GraphBuilder& graph, const Handle& handle);
/// Pushes the handle to the list of the files in the folder that `handle` gives.
void push_files_part(lua_State* L, const Handle& handle);
std::string handle_text(const GraphBuilder& graph, const Handle& handle);  // "train.x[1]"
/// The error for a method that was not called: "`h.after` …: write …"; "" if the value is not a
/// method.
std::string method_misuse(lua_State* L, int index);

// ---- graph_builder.cc
/// The graph whose body runs. Raises with `what` if no body runs.
GraphBuilder& building_graph(lua_State* L, const std::string& what);
/// Raises unless a file is being loaded.
GraphBuilder& loading_graph(lua_State* L, const char* function, const std::string& name);
void check_name(lua_State* L, const char* function, const std::string& name);
/// "train", then "train#2", with the prefix of the pipeline being inlined.
std::string next_name(GraphBuilder& graph, const std::string& name);
uint32_t def_index(lua_State* L, GraphBuilder& graph, const TaskObject& task);
/// Appends a node of `task` (null: a when) and pushes its handle.
void add_node(lua_State* L, GraphBuilder& graph, TaskNode&& node, const TaskObject* task);
/// The arguments from `first` to the top as a list; trailing nils are dropped.
Value read_arguments(lua_State* L, int first, const std::string& task);
/// A string at `index`, or an error about `what`.
std::string check_text(lua_State* L, int index, const std::string& what);
/// The file that is being loaded.
std::string loading_file(lua_State* L);

// ---- parts of open_graph
void open_tasks(lua_State* L, int flow_table);
/// flow.files, flow.files.groups and flow.list.
void open_input_files(lua_State* L, int flow_table);
/// The files that a pattern or a list names, as values with their names.
Result<std::vector<File>> list_files(const InputLister& lister, const InputPattern& wanted);
void open_flow_control(lua_State* L, int flow_table);  // map, when
void open_pipelines(lua_State* L, int flow_table);
void open_params(lua_State* L, int flow_table);

// ---- shell calls
void check_shell_definition(lua_State* L, const TaskDef& def);
/// Sets node.args and node.named_args from the call's arguments at 2..top.
void read_shell_call(lua_State* L, const TaskObject& task, TaskNode& node);
/// The same for the items and further arguments of a map.
void check_shell_map(lua_State* L, const TaskObject& task, TaskNode& node);

// ---- graph/tags.cc
/// h:tag(x): the method is at 1, its handle at 2. Returns the handle.
int call_tag(lua_State* L, const Handle& self);
/// Calls the function at `index` for the item at the top, which it pops. Raises if the result
/// cannot be a tag; `item` is its number for the message.
std::string item_tag(lua_State* L, int index, const std::string& map, size_t item);
/// After the body: calls the tag function of a map over a handle for each item. Raises as item_tag.
Status tags_of_items(lua_State* L, const TagRequest& request, std::vector<std::string>& tags);

// ---- graph/options.cc
/// Reads the options table at `index` into the task's definition. Raises for unknown and invalid
/// options.
void read_options(lua_State* L, int index, TaskObject& task);
/// Reads the options of `task:with { … }` at `index`; each replaces the whole option of the task.
/// Raises for options that `with` cannot change.
void read_call_options(lua_State* L, int index, TaskObject& task);
/// Reads the value at `index` as that option (ResourceFunction) of `def`. Raises if it is invalid.
void read_resource_option(lua_State* L, int index, TaskDef& def, uint8_t option);

// ---- graph/resource_functions.cc
/// After the body: calls the task's resource functions. Errors are in the answer.
CallResources resources_of_call(lua_State* L, const ResourceCall& call);

// ---- graph/params.cc
const Parameter* test_param(lua_State* L, int index);
/// Converts a value that the script passes for a parameter; sets `problem` if it does not fit.
/// Handles fit. `folder`: the base of relative paths. Without `lister` a pattern of files stays as
/// it is.
Value coerce_param(const ParamSpec& spec, const Value& value, const std::string& folder,
                   const InputLister& lister, std::string& problem);
/// Pushes the parameters as the body sees them: a table whose unknown names are errors.
void push_params(lua_State* L, const Value& params);

// ---- graph/body_side_effects.cc
/// Records the script's own variables and tables that a body can reach, to detect changes.
class BodyChangeDetector {
 public:
  /// Records what the function at `index` reaches.
  BodyChangeDetector(lua_State* L, int index);
  ~BodyChangeDetector();
  BodyChangeDetector(const BodyChangeDetector&) = delete;
  BodyChangeDetector& operator=(const BodyChangeDetector&) = delete;
  /// The first change in words ("assigns the captured variable `count`"), or "".
  std::string first_change();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flow::lua
