// Detects changes that a pipeline's body makes to the script's own variables and tables: no task
// would see them, so they are errors. Tables of required modules are exempt.
#include <fmt/format.h>

#include <unordered_set>

#include "lua/sandbox/sandbox.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {

namespace {

constexpr size_t kTablesMax = 200'000;  // watched; further tables of a script are not

std::string field_name(lua_State* L, int key, const std::string& of) {
  switch (lua_type(L, key)) {
    case LUA_TSTRING:
      return of + "." + lua_tostring(L, key);
    case LUA_TNUMBER: {
      lua_pushvalue(L, key);
      std::string text = fmt::format("{}[{}]", of, lua_tostring(L, -1));
      lua_pop(L, 1);
      return text;
    }
    default:
      return of + "[…]";
  }
}

bool is_nan(lua_State* L, int index) {
  return lua_type(L, index) == LUA_TNUMBER && lua_tonumber(L, index) != lua_tonumber(L, index);
}

bool same(lua_State* L, int a, int b) {
  return lua_rawequal(L, a, b) || (is_nan(L, a) && is_nan(L, b));
}

}  // namespace

struct BodyChangeDetector::Impl {
  struct WatchedVariable {  // a captured variable
    lua_Integer function = 0, value = 0;
    int upvalue = 0;
    std::string name, place;
  };
  struct WatchedTable {
    lua_Integer table = 0, copy = 0;
    std::string name;
  };
  struct PendingVisit {
    lua_Integer slot;
    std::string name;
    bool exempt, own_function;
  };

  lua_State* L;
  int store;  // registry reference of the table that holds the objects of all slots
  lua_Integer slots = 0;
  std::string source;  // the file of the body
  std::unordered_set<const void*> seen, cells_seen;
  std::vector<WatchedVariable> cells;
  std::vector<WatchedTable> tables;
  std::vector<PendingVisit> queue;

  explicit Impl(lua_State* state) : L(state) {
    lua_newtable(L);
    store = luaL_ref(L, LUA_REGISTRYINDEX);
  }
  ~Impl() { luaL_unref(L, LUA_REGISTRYINDEX, store); }

  // Pops the value at the top into the store.
  lua_Integer put() {
    lua_rawgeti(L, LUA_REGISTRYINDEX, store);
    lua_insert(L, -2);
    lua_rawseti(L, -2, ++slots);
    lua_pop(L, 1);
    return slots;
  }
  void get(lua_Integer slot) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, store);
    lua_rawgeti(L, -1, slot);
    lua_remove(L, -2);
  }

  std::string source_of(int index) {
    lua_Debug about;
    lua_pushvalue(L, index);
    lua_getinfo(L, ">S", &about);
    return about.source;
  }

  // The value stays at the top.
  void visit(const std::string& name, bool exempt, bool own_function = false) {
    int type = lua_type(L, -1);
    bool walks = type == LUA_TTABLE || (type == LUA_TFUNCTION && !lua_iscfunction(L, -1));
    if (type == LUA_TUSERDATA && !exempt) {
      const PipelineObject* pipeline = test_pipeline(L, -1);
      if (pipeline == nullptr) return;
      lua_rawgeti(L, LUA_REGISTRYINDEX, pipeline->body_ref);
      visit("pipeline " + pipeline->name, false, true);
      lua_pop(L, 1);
      return;
    }
    if (!walks || seen.size() >= kTablesMax || !seen.insert(lua_topointer(L, -1)).second) return;
    lua_pushvalue(L, -1);
    queue.push_back({put(), name, exempt, own_function});
  }

  void walk() {
    while (!queue.empty()) {
      PendingVisit next = std::move(queue.back());
      queue.pop_back();
      luaL_checkstack(L, 12, "watching a pipeline's body");
      get(next.slot);
      lua_type(L, -1) == LUA_TTABLE ? walk_table(next) : walk_function(next);
      lua_pop(L, 1);
    }
  }

  void walk_table(const PendingVisit& next) {
    int table = lua_gettop(L);
    bool exempt = next.exempt;
    if (lua_getmetatable(L, table)) {
      // An object of a module's class belongs to the module; a proxy of a library to the library.
      exempt = exempt || seen_exempt.count(lua_topointer(L, -1)) != 0 ||
               lua_rawgetp(L, -1, &kLibraryKey) != LUA_TNIL;
      lua_settop(L, table + 1);
      visit(next.name + " (its metatable)", exempt);
      lua_pop(L, 1);
    }
    if (exempt) seen_exempt.insert(lua_topointer(L, table));
    if (!exempt) lua_newtable(L);
    int copy = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, table)) {
      visit(exempt ? "" : field_name(L, -2, next.name), exempt);
      if (!exempt) {
        lua_pushvalue(L, -2);
        lua_pushvalue(L, -2);
        lua_rawset(L, copy);
      }
      lua_pop(L, 1);
    }
    if (exempt) return;
    lua_Integer copied = put();
    tables.push_back({next.slot, copied, next.name});
  }

  void walk_function(const PendingVisit& next) {
    int function = lua_gettop(L);
    bool own = next.own_function || source_of(function) == source;
    if (!next.exempt && !own) return;
    lua_Debug about;
    lua_pushvalue(L, function);
    lua_getinfo(L, ">S", &about);
    for (int i = 1;; i++) {
      const char* name = lua_getupvalue(L, function, i);
      if (name == nullptr) break;
      std::string variable = name;
      if (variable == "_ENV") {  // the script's globals are handled in the constructor
        lua_pop(L, 1);
        continue;
      }
      visit(variable, next.exempt);
      bool watched = !next.exempt && cells_seen.insert(lua_upvalueid(L, function, i)).second;
      if (!watched) {
        lua_pop(L, 1);
        continue;
      }
      lua_Integer value = put();
      cells.push_back(
          {next.slot, value, i, variable,
           fmt::format("{}:{}", about.source[0] == '@' ? about.source + 1 : about.short_src,
                       about.linedefined)});
    }
  }

  // ---- after the body

  std::string changed_cell(const WatchedVariable& cell) {
    get(cell.function);
    const char* name = lua_getupvalue(L, -1, cell.upvalue);
    get(cell.value);
    bool changed = name != nullptr && !same(L, -1, -2);
    lua_pop(L, name == nullptr ? 2 : 3);
    return changed ? fmt::format("assigns the captured variable `{}` (in the function at {})",
                                 cell.name, cell.place)
                   : "";
  }

  std::string changed_table(const WatchedTable& table) {
    int top = lua_gettop(L);
    get(table.table);
    get(table.copy);
    std::string change;
    lua_pushnil(L);
    while (change.empty() && lua_next(L, top + 1)) {
      lua_pushvalue(L, -2);
      lua_rawget(L, top + 2);
      if (!same(L, -1, -2)) change = field_name(L, -3, table.name);
      lua_pop(L, 2);
    }
    if (change.empty()) {
      lua_settop(L, top + 2);
      lua_pushnil(L);
      while (change.empty() && lua_next(L, top + 2)) {
        lua_pop(L, 1);
        lua_pushvalue(L, -1);
        if (lua_rawget(L, top + 1) == LUA_TNIL) change = field_name(L, -2, table.name);
        lua_pop(L, 1);
      }
    }
    lua_settop(L, top);
    return change.empty()
               ? ""
               : fmt::format("stores into `{}`, of a table made in the script's own file", change);
  }

  std::unordered_set<const void*> seen_exempt;
};

BodyChangeDetector::BodyChangeDetector(lua_State* L, int index) : impl_(std::make_unique<Impl>(L)) {
  int function = lua_absindex(L, index);
  luaL_checkstack(L, 12, "watching a pipeline's body");
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kLoadedKey);
  if (lua_type(L, -1) == LUA_TTABLE) {
    lua_pushnil(L);
    while (lua_next(L, -2)) {
      impl_->visit("", true);
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
  impl_->walk();
  impl_->source = impl_->source_of(function);
  lua_pushvalue(L, function);
  impl_->visit("the body", false, true);
  lua_pop(L, 1);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kGlobalsKey);
  if (lua_type(L, -1) == LUA_TTABLE) impl_->visit("_G", false);
  lua_pop(L, 1);
  impl_->walk();
}

BodyChangeDetector::~BodyChangeDetector() = default;

std::string BodyChangeDetector::first_change() {
  luaL_checkstack(impl_->L, 12, "watching a pipeline's body");
  for (const Impl::WatchedVariable& cell : impl_->cells) {
    std::string change = impl_->changed_cell(cell);
    if (!change.empty()) return change;
  }
  for (const Impl::WatchedTable& table : impl_->tables) {
    std::string change = impl_->changed_table(table);
    if (!change.empty()) return change;
  }
  return "";
}

}  // namespace flow::lua
