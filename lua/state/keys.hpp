// A table's keys in the one order in which a script sees them.
#pragma once
#include <vector>

#include "lua/state/vm_context.hpp"

namespace flow::lua {

enum Rank : uint8_t { kNumber, kString, kFalse, kTrue, kObject };

struct Key {
  Rank rank;
  bool is_integer;
  union {
    lua_Integer integer;
    lua_Number number;
    const char* text;  // held by the table
    lua_Integer object;
  };
  size_t size;
};

bool key_less(const Key& a, const Key& b);
Key key_at(lua_State* L, int index);

// A table's keys: `run` counts 1..n, `others` are the rest, sorted. Reused by the next table: the
// buffer is not held while Lua code runs.
struct Keys {
  lua_Integer run = 0;
  std::vector<Key> others;
  int objects = 0;  // stack index of a list of object keys, or 0
};

/// Reads the keys of `table`. Object keys are refused outside a task, but with `allows_objects`.
void collect(lua_State* L, int table, Keys& keys, bool allows_objects = false);
/// Sorts what was collected.
void settle(Keys& keys);
void push_key(lua_State* L, const Keys& keys, const Key& key);
/// Pushes the list of `others`.
void push_others(lua_State* L, int table, const Keys& keys);
/// The buffer of this thread.
Keys& key_buffer();

// A collection may drop entries of a weak table, and with them the texts of keys not yet pushed.
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
