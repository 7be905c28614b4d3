// Converts values to Lua and back. A value that cannot cross an edge is an error that names the
// path to it.
#include <fmt/format.h>

#include <cmath>

#include "engine/value/cbor.hpp"
#include "kernels/tensor/storage.hpp"
#include "lua/context/comm.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {

const char kNullKey = 0, kMissingKey = 0;

namespace {

const char kFileKey = 0;
constexpr size_t kEntriesMax = size_t{1} << 26;  // of one value; shared tables count each time

bool is_name(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  for (char c : text) {
    bool good =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!good) return false;
  }
  return true;
}

bool is_below(std::string_view path, std::string_view folder) {
  return !folder.empty() && path.starts_with(folder) &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

// A table on the path from the root to the current value.
struct PathEntry {
  const PathEntry* outer;
  const void* table;
  const Value* key;
};

std::string path_text(const PathEntry* step) {
  if (step == nullptr) return "";
  std::string text = path_text(step->outer);
  const Value* key = step->key;
  if (key == nullptr) return text;
  if (key->kind() == Value::Kind::string && is_name(key->as_string()))
    return text + "." + key->as_string();
  return text + "[" + to_json(*key) + "]";
}

class ValueReader {
 public:
  ValueReader(lua_State* L, Refs refs, int outer, TensorRead how = TensorRead::shared)
      : L_(L),
        context_(context(L)),
        refs_(refs),
        how_(how),
        depth_max_(std::min(kTableDepthMax, kValueDepthMax - outer)) {}

  /// Reads one value after the other.
  bool read_whole(int index, Value& out) {
    entries_ = 0;
    return read(index, out, nullptr, 0);
  }

  std::string what, path, advice;  // of the error

 private:
  bool read(int index, Value& out, const PathEntry* step, int depth) {
    switch (lua_type(L_, index)) {
      case LUA_TNIL:
      case LUA_TNONE:
        out = Value();
        return true;
      case LUA_TBOOLEAN:
        out = Value(lua_toboolean(L_, index) != 0);
        return true;
      case LUA_TNUMBER:
        out = lua_isinteger(L_, index) ? Value(static_cast<int64_t>(lua_tointeger(L_, index)))
                                       : Value(lua_tonumber(L_, index));
        return true;
      case LUA_TSTRING: {
        size_t size;
        const char* text = lua_tolstring(L_, index, &size);
        return string({text, size}, out, step);
      }
      case LUA_TTABLE:
        return table(index, out, step, depth);
      case LUA_TUSERDATA:
        return object(index, out, step, depth);
      case LUA_TLIGHTUSERDATA:
        if (lua_touserdata(L_, index) == &kMissingKey)
          return fail(step, "flow.missing",
                      "it stands for the result of a task that failed: leave it out, or put "
                      "flow.null in its place");
        if (lua_touserdata(L_, index) != &kNullKey) return fail(step, "a light userdata", "");
        out = Value::null();
        return true;
      default:
        return fail(step, kind_text(L_, index), kAllowed);
    }
  }

  static constexpr const char* kAllowed =
      "what crosses an edge is nil, a boolean, a number, a string, a table of these, a tensor or a "
      "file";

  bool fail(const PathEntry* step, std::string what_it_is, std::string why) {
    what = std::move(what_it_is);
    path = path_text(step);
    advice = std::move(why);
    return false;
  }

  bool string(std::string_view text, Value& out, const PathEntry* step) {
    if (context_.phase == ScriptPhase::task && !text.empty() && text[0] == '/') {
      auto input = context_.input_files.find(std::string(text));
      if (input != context_.input_files.end()) {
        out = Value(input->second);
        return true;
      }
      if (!reject_path(text, step)) return false;
    }
    out = Value(text);
    return true;
  }

  // A path of this attempt is meaningless in another task: its content must become a file value.
  bool reject_path(std::string_view text, const PathEntry* step) {
    const AttemptRequest* request = context_.request;
    if (request == nullptr) return true;
    if (is_below(text, request->dir)) {
      std::string_view rest = text.substr(std::min(text.size(), request->dir.size() + 1));
      return fail(step, fmt::format("the path `{}`", text),
                  fmt::format("it is in ctx.dir, which is deleted after the attempt; use "
                              "ctx:file(\"{}\")",
                              rest.empty() ? "." : rest));
    }
    if (is_below(text, request->state_dir))
      return fail(step, fmt::format("the path `{}`", text),
                  "it is in the state directory, which only flow may name; write the content to "
                  "ctx.dir and use ctx:file(\"NAME\")");
    return true;
  }

  bool object(int index, Value& out, const PathEntry* step, int depth) {
    if (const void* handle = test_object(L_, index, &kHandleKey))
      return ref(*static_cast<const Handle*>(handle), out, step, depth);
    if (const File* file = test_file(L_, index)) {
      if (depth >= depth_max_) return too_deep(step);
      bool unread = context_.phase == ScriptPhase::task && file->digest.is_zero();
      if (unread)
        return fail(step, "the file `" + file->name + "`, which is not an input of this task",
                    "pass the file to the task as an argument");
      out = Value(*file);
      return true;
    }
    if (is_tensor(L_, index)) {
      if (depth >= depth_max_) return too_deep(step);
      return tensor(index, out, step);
    }
    std::string misuse = method_misuse(L_, index);
    if (!misuse.empty()) return fail(step, "a method", misuse);
    std::string kind = kind_text(L_, index);
    if (test_task(L_, index) != nullptr)
      return fail(step, kind, "call it, and pass the handle that the call returns");
    if (test_object(L_, index, &kEnvKey) != nullptr)
      return fail(step, kind, "it belongs into the option `env = { NAME = flow.env(\"NAME\") }`");
    return fail(step, kind, kAllowed);
  }

  bool ref(const Handle& handle, Value& out, const PathEntry* step, int depth) {
    if (!is_alive(context_, handle))
      return fail(step, "a handle of another graph",
                  "a handle lives only while the body that made it runs");
    const GraphBuilder& graph = *context_.graph;
    if (refs_ == Refs::none)
      return fail(
          step, "the handle `" + handle_text(graph, handle) + "`",
          "a handle stands for a result that does not exist yet, so it is allowed only in a "
          "task's arguments or a body's result");
    if (refs_ == Refs::results && is_service(graph, handle))
      return fail(step, "the service `" + handle_text(graph, handle) + "`",
                  "a service has no result: order with `x:after(service)`, or return it from the "
                  "body");
    if (depth >= depth_max_) return too_deep(step);
    out = ref_of(graph, handle);
    return true;
  }

  static bool is_service(const GraphBuilder& graph, const Handle& handle) {
    const TaskObject* task = graph.node_tasks[handle.node];
    return task != nullptr && task->def.kind == TaskKind::service;
  }

  bool tensor(int index, Value& out, const PathEntry* step) {
    if (context_.phase != ScriptPhase::task)
      return fail(step, "a tensor made while the script loads or its graph is built",
                  "only tasks have a store for it: make it in a task and pass that task's handle");
    if (const char* call = writing(index))
      return fail(step, fmt::format("a tensor that ctx.comm:{} is writing to", call),
                  "first call h:wait() on the handle that it returned");
    Tensor tensor;
    try {
      tensor = read_tensor(L_, index, how_);
    } catch (const tensors::TensorError& failure) {
      return fail(step, "a tensor that can't be copied", failure.what());
    }
    if (context_.host != nullptr && how_ == TensorRead::shared) {
      Status stored = context_.host->store_tensor(tensor);
      if (!stored.ok()) return fail(step, "a tensor that can't be stored", stored.error().message);
    }
    out = Value(std::move(tensor));
    return true;
  }

  /// The collective in flight that writes to the tensor; null if there is none.
  const char* writing(int index) const {
    return context_.comm != nullptr ? context_.comm->writing(check_object(L_, index, "it"))
                                    : nullptr;
  }

  bool too_deep(const PathEntry* step) {
    fail(step, "a table nested too deep", fmt::format("tables nest to {} at most", depth_max_));
    constexpr size_t kPathShown = 60;
    if (path.size() > kPathShown) path = path.substr(0, kPathShown) + "…";
    return false;
  }

  bool table(int index, Value& out, const PathEntry* step, int depth) {
    const void* self = lua_topointer(L_, index);
    for (const PathEntry* at = step; at != nullptr; at = at->outer)
      if (at->table == self)
        return fail(step, "a table that contains itself", "a value has no cycles: break it");
    if (depth >= depth_max_) return too_deep(step);
    if (lua_getmetatable(L_, index)) {
      lua_rawgetp(L_, LUA_REGISTRYINDEX, &kParamsKey);
      bool is_params = lua_rawequal(L_, -1, -2);
      lua_pop(L_, 2);
      if (!is_params)
        return fail(step, "a table with a metatable",
                    "methods do not cross an edge: pass a plain table of its fields");
    }
    lua_checkstack(L_, 8);
    Value::Table result;
    size_t length = lua_rawlen(L_, index);
    result.list.reserve(length);
    int absolute = lua_absindex(L_, index);
    PathEntry here{step, self, nullptr};
    lua_pushnil(L_);
    while (lua_next(L_, absolute)) {
      if (++entries_ > kEntriesMax) return fail(step, "a value with too many entries", "split it");
      Value key, item;
      here.key = &key;
      if (!read_key(key, step) || !read(lua_gettop(L_), item, &here, depth + 1)) {
        lua_pop(L_, 2);
        return false;
      }
      bool next_item = key.kind() == Value::Kind::integer &&
                       key.as_integer() == static_cast<int64_t>(result.list.size()) + 1;
      if (next_item) {
        result.list.push_back(std::move(item));
      } else {
        result.fields.emplace_back(std::move(key), std::move(item));
      }
      lua_pop(L_, 1);
    }
    out = Value(std::move(result));
    return true;
  }

  // The key below the value at the top.
  bool read_key(Value& key, const PathEntry* step) {
    switch (lua_type(L_, -2)) {
      case LUA_TBOOLEAN:
        key = Value(lua_toboolean(L_, -2) != 0);
        return true;
      case LUA_TSTRING: {
        size_t size;
        const char* text = lua_tolstring(L_, -2, &size);
        std::string_view name(text, size);
        key = Value(name);
        bool local = context_.phase == ScriptPhase::task && !name.empty() && name[0] == '/';
        return !local || reject_path(name, step);
      }
      case LUA_TNUMBER:
        if (lua_isinteger(L_, -2)) {
          key = Value(static_cast<int64_t>(lua_tointeger(L_, -2)));
          return true;
        }
        return fail(step, fmt::format("the key {}", lua_tonumber(L_, -2)),
                    "a key is a string, an integer or a boolean: use tostring of it");
      default:
        return fail(step, "a key that is " + kind_text(L_, -2),
                    "a key is a string, an integer or a boolean");
    }
  }

  lua_State* L_;
  VmContext& context_;
  Refs refs_;
  TensorRead how_;
  int depth_max_;
  size_t entries_ = 0;
};

Error reading_error(const ValueReader& reader, const char* where, int argument) {
  std::string root = argument > 0 ? fmt::format("argument {}", argument) : where;
  const char* verb = root == "result" ? "returned" : "cannot take";
  return user_error(fmt::format("{} {} at {}{}{}{}", verb, reader.what, root, reader.path,
                                reader.advice.empty() ? "" : ": ", reader.advice));
}

// ---- pushing

void push_path_of(lua_State* L, VmContext& ctx, const File& file) {
  auto path = ctx.host->file_path(file);
  if (!path.ok()) {
    std::string message =
        fmt::format("the input `{}` can't be read: {}", file.name, path.error().message);
    raise(L, message);
  }
  ctx.input_files[*path] = file;
  lua_pushlstring(L, path->data(), path->size());
}

void push_ref(lua_State* L, VmContext& ctx, const Ref& ref) {
  if (ctx.graph == nullptr) raise(L, "a handle has no meaning inside a task");
  uint32_t part = kWholeResult;
  if (ref.keeps_places) {
    ctx.graph->parts.emplace_back(part, PathStep{false, Value::missing()});
    part = static_cast<uint32_t>(ctx.graph->parts.size()) - 1;
  }
  for (const PathStep& step : ref.path) {
    ctx.graph->parts.emplace_back(part, step);
    part = static_cast<uint32_t>(ctx.graph->parts.size()) - 1;
  }
  push_handle(L, *ctx.graph, ref.node, part);
}

void push_any(lua_State* L, VmContext& ctx, const Value& value) {
  switch (value.kind()) {
    case Value::Kind::nil:
      return lua_pushnil(L);
    case Value::Kind::null:
      return lua_pushlightuserdata(L, const_cast<char*>(&kNullKey));
    case Value::Kind::missing:
      return lua_pushlightuserdata(L, const_cast<char*>(&kMissingKey));
    case Value::Kind::boolean:
      return lua_pushboolean(L, value.as_boolean());
    case Value::Kind::integer:
      return lua_pushinteger(L, value.as_integer());
    case Value::Kind::number:
      return lua_pushnumber(L, value.as_number());
    case Value::Kind::string:
      lua_pushlstring(L, value.as_string().data(), value.as_string().size());
      return;
    case Value::Kind::tensor:
      return push_tensor(L, value.as_tensor());
    case Value::Kind::file:
      if (ctx.phase == ScriptPhase::task && ctx.host != nullptr)
        return push_path_of(L, ctx, value.as_file());
      return push_file(L, value.as_file());
    case Value::Kind::ref:
      return push_ref(L, ctx, value.as_ref());
    case Value::Kind::table:
      break;
  }
  const Value::Table& table = value.as_table();
  luaL_checkstack(L, 4, "the value is nested too deep");
  constexpr size_t kHintMax = size_t{1} << 24;
  lua_createtable(L, static_cast<int>(std::min(table.list.size(), kHintMax)),
                  static_cast<int>(std::min(table.fields.size(), kHintMax)));
  lua_Integer index = 0;
  for (const Value& item : table.list) {
    index++;
    if (item.is_nil()) continue;
    push_any(L, ctx, item);
    lua_rawseti(L, -2, index);
  }
  for (const auto& [key, item] : table.fields) {
    push_any(L, ctx, key);
    push_any(L, ctx, item);
    lua_rawset(L, -3);
  }
}

// ---- the file userdata of a graph being built

int file_collect(lua_State* L) {
  if (auto* file = static_cast<File*>(test_object(L, 1, &kFileKey))) file->~File();
  return 0;
}

int file_index(lua_State* L) {
  const File* file = test_file(L, 1);
  std::string_view key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  if (file != nullptr && key == "name") {
    lua_pushlstring(L, file->name.data(), file->name.size());
    return 1;
  }
  raise(L, fmt::format("a file has no field `{}` here: pass the file to a task as an argument; "
                       "there it is a path",
                       key));
}

int file_misuse(lua_State* L) {
  raise(L,
        "a file cannot be used as a string here, because it has no path yet: pass it to a "
        "task as an argument, where it is a path");
}

int file_equals(lua_State* L) {
  const File *a = test_file(L, 1), *b = test_file(L, 2);
  bool same = a != nullptr && b != nullptr && Value(*a) == Value(*b) && a->origin == b->origin;
  lua_pushboolean(L, same);
  return 1;
}

int file_text(lua_State* L) {
  const File* file = test_file(L, 1);
  std::string text = "file " + (file == nullptr ? "" : file->name);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

}  // namespace

Result<Value> read_graph_value(lua_State* L, int index, const char* where, int argument, Refs refs,
                               int depth) {
  ValueReader reader(L, refs, depth);
  int top = lua_gettop(L);
  Value value;
  if (reader.read_whole(lua_absindex(L, index), value)) return value;
  lua_settop(L, top);
  return reading_error(reader, where, argument);
}

Result<std::vector<Value>> read_graph_arguments(lua_State* L, int first) {
  constexpr int kInList = 1;  // depth: the list around the arguments is a table
  ValueReader reader(L, Refs::results, kInList);
  int top = lua_gettop(L);
  std::vector<Value> values(static_cast<size_t>(std::max(0, top - first + 1)));
  for (size_t i = 0; i < values.size(); i++) {
    if (reader.read_whole(first + static_cast<int>(i), values[i])) continue;
    lua_settop(L, top);
    return reading_error(reader, "", static_cast<int>(i) + 1);
  }
  return values;
}

Result<Value> read_value(lua_State* L, int index, const std::string& where, bool allow_refs) {
  return read_graph_value(L, index, where.c_str(), 0, allow_refs ? Refs::everything : Refs::none);
}

namespace {

Result<Value> read_unstored(lua_State* L, int index, const std::string& where, TensorRead how) {
  ValueReader reader(L, Refs::none, 0, how);
  int top = lua_gettop(L);
  Value value;
  if (reader.read_whole(lua_absindex(L, index), value)) return value;
  lua_settop(L, top);
  return reading_error(reader, where.c_str(), 0);
}

}  // namespace

Result<Value> read_snapshot(lua_State* L, int index, const std::string& where) {
  return read_unstored(L, index, where, TensorRead::unnamed);
}

Result<Value> read_response(lua_State* L, int index, const std::string& where) {
  return read_unstored(L, index, where, TensorRead::borrowed);
}

void push_value(lua_State* L, const Value& value) { push_any(L, context(L), value); }

void push_file(lua_State* L, const File& file) {
  void* memory = lua_newuserdatauv(L, sizeof(File), 0);
  new (memory) File(file);
  if (new_metatable(L, &kFileKey, "file")) {
    luaL_Reg methods[] = {{"__gc", file_collect},    {"__index", file_index},
                          {"__eq", file_equals},     {"__tostring", file_text},
                          {"__concat", file_misuse}, {"__len", file_misuse},
                          {nullptr, nullptr}};
    luaL_setfuncs(L, methods, 0);
  }
  lua_setmetatable(L, -2);
}

const File* test_file(lua_State* L, int index) {
  return static_cast<const File*>(test_object(L, index, &kFileKey));
}

}  // namespace flow::lua
