// Fresh upvalues for every attempt: the objects that a task's function can reach are recorded once,
// compared before each attempt, and restored if they differ.
#include <algorithm>

#include "lua/sandbox/sandbox.hpp"
#include "lua/tensor/kernel.hpp"

namespace flow::lua {

/// The objects that the tasks of one script reach, each recorded once for all tasks. They are in a
/// table of the registry, under the numbers stored here.
struct RestorePool {
  struct SavedVariable {  // a captured variable
    lua_Integer function, value;
    int upvalue;
  };
  struct SavedTable {
    lua_Integer table, copy, metatable;  // 0: no metatable
    size_t count;
    const void* metatable_address;
  };
  struct SavedContent {  // of a tensor
    lua_Integer tensor;
    std::string bytes;
  };

  explicit RestorePool(lua_State* L) {
    lua_newtable(L);
    store = luaL_ref(L, LUA_REGISTRYINDEX);
  }

  int store;  // registry reference
  lua_Integer slots = 0;
  std::vector<SavedVariable> cells;
  std::vector<SavedTable> tables;
  std::vector<SavedContent> contents;
  std::unordered_map<const void*, uint32_t> cell_of, table_of, content_of;
};

namespace {

constexpr int kStackNeeded = 20;

RestorePool& pool_of(lua_State* L) {
  auto& pool = sandbox(L).restore_pool;
  if (pool == nullptr) pool = std::make_shared<RestorePool>(L);
  return *pool;
}

class TaskSnapshot : public Snapshot {
 public:
  explicit TaskSnapshot(RestorePool& pool) : pool_(pool) {}

  std::vector<uint32_t> cells, tables, contents;

  void restore(lua_State* L) override {
    luaL_checkstack(L, kStackNeeded, "restore");
    lua_rawgeti(L, LUA_REGISTRYINDEX, pool_.store);
    int store = lua_gettop(L);
    for (uint32_t cell : cells) restore_cell(L, store, pool_.cells[cell]);
    for (uint32_t table : tables) restore_table(L, store, pool_.tables[table]);
    for (uint32_t content : contents) restore_content(L, store, pool_.contents[content]);
    lua_settop(L, store - 1);
  }

 private:
  static void restore_cell(lua_State* L, int store, const RestorePool::SavedVariable& cell) {
    lua_rawgeti(L, store, cell.function);
    lua_rawgeti(L, store, cell.value);
    lua_getupvalue(L, -2, cell.upvalue);
    bool same = lua_rawequal(L, -1, -2);
    lua_pop(L, 1);
    if (!same) {
      lua_setupvalue(L, -2, cell.upvalue);
      lua_pop(L, 1);
    } else {
      lua_pop(L, 2);
    }
  }

  static void restore_table(lua_State* L, int store, const RestorePool::SavedTable& saved) {
    lua_rawgeti(L, store, saved.table);
    lua_rawgeti(L, store, saved.copy);
    int table = store + 1, copy = store + 2;
    const void* metatable = nullptr;
    if (lua_getmetatable(L, table)) {
      metatable = lua_topointer(L, -1);
      lua_pop(L, 1);
    }
    if (metatable != saved.metatable_address) {
      if (saved.metatable == 0) {
        lua_pushnil(L);
      } else {
        lua_rawgeti(L, store, saved.metatable);
      }
      lua_setmetatable(L, table);
    }
    size_t same = 0;
    lua_pushnil(L);
    while (lua_next(L, table)) {
      lua_pushvalue(L, -2);
      lua_rawget(L, copy);
      if (lua_rawequal(L, -1, -2)) {
        same++;
        lua_pop(L, 2);
        continue;
      }
      // An existing field may be changed or cleared during the traversal.
      same += !lua_isnil(L, -1);
      lua_pushvalue(L, -3);
      lua_insert(L, -2);
      lua_rawset(L, table);
      lua_pop(L, 1);
    }
    if (same != saved.count) put_back_missing(L, table, copy);
    lua_settop(L, store);
  }

  static void put_back_missing(lua_State* L, int table, int copy) {
    lua_pushnil(L);
    while (lua_next(L, copy)) {
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, table);
    }
  }

  static void restore_content(lua_State* L, int store, const RestorePool::SavedContent& saved) {
    lua_rawgeti(L, store, saved.tensor);
    forget_gradient(L, lua_gettop(L));
    if (tensor_bytes(L, -1) != saved.bytes) restore_tensor(L, lua_gettop(L), saved.bytes);
    lua_settop(L, store);
  }

  RestorePool& pool_;
};

// Visits the objects that a function reaches and records them in a snapshot.
class SnapshotCollector {
 public:
  SnapshotCollector(lua_State* L, TaskSnapshot& out) : L_(L), pool_(pool_of(L)), out_(out) {
    luaL_checkstack(L, kStackNeeded, "snapshot");
    lua_rawgeti(L, LUA_REGISTRYINDEX, pool_.store);
    store_ = lua_gettop(L);
  }
  ~SnapshotCollector() { lua_settop(L_, store_ - 1); }
  SnapshotCollector(const SnapshotCollector&) = delete;
  SnapshotCollector& operator=(const SnapshotCollector&) = delete;

  /// False if an object cannot be restored: a coroutine, a library's own state.
  bool take(int function_index) {
    lua_pushvalue(L_, function_index);
    visit();
    library_extensions();
    while (!queue_.empty() && possible_) {
      lua_Integer slot = queue_.back();
      queue_.pop_back();
      lua_rawgeti(L_, store_, slot);
      if (lua_type(L_, -1) == LUA_TTABLE) {
        table(slot);
      } else {
        function(slot);
      }
      lua_settop(L_, store_);
    }
    return possible_;
  }

 private:
  // Records the value at the top and pops it.
  lua_Integer keep() {
    lua_rawseti(L_, store_, ++pool_.slots);
    return pool_.slots;
  }

  // Pops the value at the top.
  void visit() {
    int top = lua_gettop(L_);
    switch (lua_type(L_, top)) {
      case LUA_TTABLE:
      case LUA_TFUNCTION:
        return object(top);
      case LUA_TUSERDATA:
        return userdata(top);
      case LUA_TTHREAD:
        possible_ = false;
        break;
      default:
        break;
    }
    lua_settop(L_, top - 1);
  }

  void object(int index) {
    if (is_globals(L_, index)) {
      all_globals();
      lua_settop(L_, index - 1);
      return;
    }
    std::string library = library_name(L_, index);
    if (!library.empty()) {
      if (reaches_all_globals(library)) all_globals();
      if (reaches_modules(library)) all_modules();
      lua_settop(L_, index - 1);
      return;
    }
    if (!seen_.insert(lua_topointer(L_, index)).second) {
      lua_settop(L_, index - 1);
      return;
    }
    queue_.push_back(keep());
  }

  void userdata(int index) {
    if (test_kernel(L_, index) != nullptr) {  // its functions have upvalues
      push_kernel_table(L_, index);
      visit();
      lua_settop(L_, index - 1);
      return;
    }
    bool constant = !library_name(L_, index).empty() || test_task(L_, index) != nullptr ||
                    test_pipeline(L_, index) != nullptr || test_file(L_, index) != nullptr ||
                    test_param(L_, index) != nullptr || test_object(L_, index, &kEnvKey) != nullptr;
    if (!constant && is_tensor(L_, index)) {
      content(index);
    } else if (!constant) {
      possible_ = false;
    }
    lua_settop(L_, index - 1);
  }

  void content(int index) {
    const void* self = lua_topointer(L_, index);
    if (!seen_.insert(self).second) return;
    auto [found, is_new] =
        pool_.content_of.emplace(self, static_cast<uint32_t>(pool_.contents.size()));
    if (is_new) {
      std::string bytes = tensor_bytes(L_, index);
      lua_pushvalue(L_, index);
      pool_.contents.push_back({keep(), std::move(bytes)});
    }
    out_.contents.push_back(found->second);
  }

  void function(lua_Integer slot) {
    int index = lua_gettop(L_);
    for (int i = 1; lua_getupvalue(L_, index, i) != nullptr; i++) {
      bool environment = is_globals(L_, -1);
      cell(slot, index, i);
      if (environment) {
        lua_pop(L_, 1);
      } else {
        visit();
      }
    }
    if (lua_iscfunction(L_, index)) return;
    const FunctionCode code = function_code(L_, index);
    if (code.all_globals) all_globals();
    if (code.modules) all_modules();
    for (const std::string& name : code.globals) global(name);
  }

  // A captured variable, whose value is at the top and stays.
  void cell(lua_Integer slot, int function, int upvalue) {
    const void* self = lua_upvalueid(L_, function, upvalue);
    if (!seen_.insert(self).second) return;
    auto [found, is_new] = pool_.cell_of.emplace(self, static_cast<uint32_t>(pool_.cells.size()));
    if (is_new) {
      lua_pushvalue(L_, -1);
      pool_.cells.push_back({slot, keep(), upvalue});
    }
    out_.cells.push_back(found->second);
  }

  void table(lua_Integer slot) {
    int index = lua_gettop(L_);
    const void* self = lua_topointer(L_, index);
    auto [found, is_new] = pool_.table_of.emplace(self, static_cast<uint32_t>(pool_.tables.size()));
    if (is_new) pool_.tables.push_back(copy_of(slot, index));
    out_.tables.push_back(found->second);
    if (lua_getmetatable(L_, index)) visit();
    lua_pushnil(L_);
    while (lua_next(L_, index)) {
      visit();
      lua_pushvalue(L_, -1);
      visit();
    }
  }

  RestorePool::SavedTable copy_of(lua_Integer slot, int index) {
    RestorePool::SavedTable saved{slot, 0, 0, 0, nullptr};
    if (lua_getmetatable(L_, index)) {
      saved.metatable_address = lua_topointer(L_, -1);
      saved.metatable = keep();
    }
    lua_newtable(L_);
    int copy = lua_gettop(L_);
    lua_pushnil(L_);
    while (lua_next(L_, index)) {
      lua_pushvalue(L_, -2);
      lua_insert(L_, -2);
      lua_rawset(L_, copy);
      saved.count++;
    }
    saved.copy = keep();
    return saved;
  }

  void global(const std::string& name) {
    if (sandbox(L_).declared.count(name) == 0) return;
    lua_rawgetp(L_, LUA_REGISTRYINDEX, &kGlobalsKey);
    lua_pushlstring(L_, name.data(), name.size());
    lua_rawget(L_, -2);
    lua_remove(L_, -2);
    visit();
  }

  void all_globals() {
    if (globals_done_) return;
    globals_done_ = true;
    for (const std::string& name : script_globals(L_)) global(name);
  }

  void all_modules() {
    if (modules_done_) return;
    modules_done_ = true;
    lua_rawgetp(L_, LUA_REGISTRYINDEX, &kLoadedKey);
    int loaded = lua_gettop(L_);
    lua_pushnil(L_);
    while (lua_next(L_, loaded)) visit();
    lua_settop(L_, loaded - 1);
  }

  void library_extensions() {
    const auto& added = sandbox(L_).library_extensions;
    if (added.empty()) return;
    lua_rawgetp(L_, LUA_REGISTRYINDEX, &kExtensionsKey);
    int tables = lua_gettop(L_);
    for (const auto& [library, field] : added) {
      lua_getfield(L_, tables, library.c_str());
      lua_pushlstring(L_, field.data(), field.size());
      lua_rawget(L_, -2);
      visit();
      lua_settop(L_, tables);
    }
    lua_settop(L_, tables - 1);
  }

  lua_State* L_;
  RestorePool& pool_;
  TaskSnapshot& out_;
  int store_;
  std::vector<lua_Integer> queue_;
  std::unordered_set<const void*> seen_;
  bool globals_done_ = false, modules_done_ = false, possible_ = true;
};

}  // namespace

std::unique_ptr<Snapshot> Snapshot::take(lua_State* L, int function_index) {
  function_index = lua_absindex(L, function_index);
  auto snapshot = std::make_unique<TaskSnapshot>(pool_of(L));
  if (!SnapshotCollector(L, *snapshot).take(function_index)) return nullptr;
  return snapshot;
}

}  // namespace flow::lua
