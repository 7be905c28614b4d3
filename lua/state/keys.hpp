// A table's keys in the order in which scripts see them.
#pragma once
#include <vector>

#include "lua/state/vm_context.hpp"

namespace flow::lua {

enum Rank : uint8_t { kNumber, kString, kFalse, kTrue, kObject };

struct TableKey {
  Rank rank;
  bool is_integer;
  union {
    lua_Integer integer;
    lua_Number number;
    const char* text;  // owned by the table
    lua_Integer object;
  };
  size_t size;
};

bool key_less(const TableKey& a, const TableKey& b);
TableKey key_at(lua_State* L, int index);

// A table's keys: `run` counts 1..n, `others` are the rest, sorted. Reused for the next table: the
// buffer is not in use while Lua code runs.
struct Keys {
  lua_Integer run = 0;
  std::vector<TableKey> others;
  int objects = 0;  // stack index of a list of object keys, or 0
};

/// Reads the keys of `table`. Object keys are rejected outside a task, unless `allows_objects`.
void collect(lua_State* L, int table, Keys& keys, bool allows_objects = false);
/// Sorts the collected keys.
void sort_keys(Keys& keys);
void push_key(lua_State* L, const Keys& keys, const TableKey& key);
/// Pushes the list of `others`.
void push_others(lua_State* L, int table, const Keys& keys);
/// The buffer of this thread.
Keys& key_buffer();

// Prevents a collection, which could remove entries of a weak table and free the texts of keys.
class NoCollection {
 public:
  NoCollection(lua_State* L, int table) : L_(L), active_(lua_getmetatable(L, table)) {
    if (!active_) return;
    lua_pop(L, 1);
    lua_gc(L, LUA_GCSTOP);
  }
  ~NoCollection() {
    if (active_) lua_gc(L_, LUA_GCRESTART);
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

 private:
  lua_State* L_;
  bool active_;
};

}  // namespace flow::lua
