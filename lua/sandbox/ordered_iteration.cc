// pairs, ipairs and next in the order of state/keys.hpp.
#include <algorithm>

#include "lua/sandbox/sandbox.hpp"
#include "lua/state/keys.hpp"

namespace flow::lua {

const char kOrdersKey = 0;

namespace {

// ---- pairs

int pairs_list(lua_State* L) {  // upvalue 1: n
  lua_Integer n = lua_tointeger(L, lua_upvalueindex(1));
  lua_settop(L, 2);
  lua_Integer at = lua_isnil(L, 2) ? 0 : lua_tointeger(L, 2);
  while (++at <= n) {
    if (lua_rawgeti(L, 1, at) == LUA_TNIL) {
      lua_pop(L, 1);
      continue;
    }
    lua_pushinteger(L, at);
    lua_insert(L, -2);
    return 2;
  }
  lua_pushnil(L);
  return 1;
}

int pairs_mixed(lua_State* L) {  // upvalues: n, keys, position (below 0 while in 1..n)
  lua_Integer n = lua_tointeger(L, lua_upvalueindex(1));
  lua_Integer at = lua_tointeger(L, lua_upvalueindex(3));
  while (at < n) {
    at++;
    if (lua_rawgeti(L, 1, at) == LUA_TNIL) {
      lua_pop(L, 1);
      continue;
    }
    lua_pushinteger(L, at);
    lua_copy(L, -1, lua_upvalueindex(3));
    lua_insert(L, -2);
    return 2;
  }
  for (;;) {
    at++;
    if (lua_rawgeti(L, lua_upvalueindex(2), at - n) == LUA_TNIL) {
      lua_pushinteger(L, at - 1);
      lua_replace(L, lua_upvalueindex(3));
      return 1;
    }
    lua_pushvalue(L, -1);
    if (lua_rawget(L, 1) != LUA_TNIL) {
      lua_pushinteger(L, at);
      lua_replace(L, lua_upvalueindex(3));
      return 2;
    }
    lua_pop(L, 2);
  }
}

constexpr size_t kKeysInClosure = 12;  // a short list of keys needs no table

int pairs_short(lua_State* L) {  // upvalues: n, position, then the keys
  lua_Integer n = lua_tointeger(L, lua_upvalueindex(1));
  lua_Integer at = lua_tointeger(L, lua_upvalueindex(2));
  for (;;) {
    at++;
    if (at <= n) {
      lua_pushinteger(L, at);
    } else {
      int key = lua_upvalueindex(static_cast<int>(2 + at - n));
      if (lua_isnoneornil(L, key)) return 0;
      lua_pushvalue(L, key);
    }
    lua_pushvalue(L, -1);
    if (lua_rawget(L, 1) == LUA_TNIL) {
      lua_pop(L, 2);
      continue;
    }
    lua_pushinteger(L, at);
    lua_replace(L, lua_upvalueindex(2));
    return 2;
  }
}

void push_short(lua_State* L, int table, const Keys& keys) {
  NoCollection pause(L, table);
  lua_pushinteger(L, 0);
  for (const TableKey& key : keys.others) push_key(L, keys, key);
  lua_pushcclosure(L, pairs_short, static_cast<int>(2 + keys.others.size()));
}

int flow_pairs(lua_State* L) {
  luaL_checkany(L, 1);
  if (lua_type(L, 1) == LUA_TUSERDATA) reject_handle(L, 1, "pairs");
  if (lua_getmetatable(L, 1)) {
    lua_pop(L, 1);
    if (push_proxied_table(L, 1)) {
      lua_replace(L, 1);
    } else if (luaL_getmetafield(L, 1, "__pairs") != LUA_TNIL) {
      lua_pushvalue(L, 1);
      lua_call(L, 1, 3);
      return 3;
    }
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  Keys& keys = key_buffer();
  collect(L, 1, keys);
  sort_keys(keys);
  lua_pushinteger(L, keys.run);
  if (keys.others.empty()) {
    lua_pushcclosure(L, pairs_list, 1);
  } else if (keys.others.size() <= kKeysInClosure) {
    push_short(L, 1, keys);
  } else {
    push_others(L, 1, keys);
    lua_pushinteger(L, 0);
    lua_pushcclosure(L, pairs_mixed, 3);
  }
  lua_pushvalue(L, 1);
  lua_pushnil(L);
  return 3;
}

int flow_ipairs_step(lua_State* L) {
  lua_Integer at = luaL_checkinteger(L, 2);
  at = static_cast<lua_Integer>(static_cast<lua_Unsigned>(at) + 1);
  lua_pushinteger(L, at);
  return lua_geti(L, 1, at) == LUA_TNIL ? 1 : 2;
}

int tensor_step(lua_State* L) {  // an index after the last is an error, not nil
  lua_Integer at = luaL_checkinteger(L, 2);
  if (at >= luaL_len(L, 1)) return 0;
  lua_pushinteger(L, at + 1);
  lua_geti(L, 1, at + 1);
  return 2;
}

int flow_ipairs(lua_State* L) {
  luaL_checkany(L, 1);
  if (lua_type(L, 1) == LUA_TUSERDATA) {
    reject_handle(L, 1, "ipairs");
    if (is_tensor(L, 1)) {
      lua_settop(L, 1);
      lua_pushcfunction(L, tensor_step);
      lua_insert(L, 1);
      lua_pushinteger(L, 0);
      return 3;
    }
  }
  lua_pushcfunction(L, flow_ipairs_step);
  lua_pushvalue(L, 1);
  lua_pushinteger(L, 0);
  return 3;
}

// ---- next: a traversal begins with next(t) and continues in later calls

void forget_order(lua_State* L) {  // of the table at 1
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kOrdersKey);
  lua_pushvalue(L, 1);
  if (lua_rawget(L, -2) != LUA_TNIL) {
    lua_pushvalue(L, 1);
    lua_pushnil(L);
    lua_rawset(L, -4);
  }
  lua_pop(L, 2);
}

int next_first(lua_State* L) {
  Sandbox& box = sandbox(L);
  box.walk_table = nullptr;
  forget_order(L);
  if (lua_rawgeti(L, 1, 1) != LUA_TNIL) {
    box.walk_table = lua_topointer(L, 1);
    box.walk_at = 1;
    lua_pushinteger(L, 1);
    lua_insert(L, -2);
    return 2;
  }
  lua_settop(L, 1);
  Keys& keys = key_buffer();
  collect(L, 1, keys);
  if (keys.others.empty()) {
    lua_pushnil(L);
    return 1;
  }
  auto first = std::min_element(keys.others.begin(), keys.others.end(), key_less);
  push_key(L, keys, *first);
  if (keys.objects != 0) {
    // Objects have no intrinsic order, so the order is fixed now.
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kOrdersKey);
    lua_pushvalue(L, 1);
    sort_keys(keys);
    push_others(L, 1, keys);
    lua_rawset(L, -3);
    lua_pop(L, 1);
  }
  lua_pushvalue(L, -1);
  lua_rawget(L, 1);
  return 2;
}

// Continues in the list of keys at the top from `at`; its position is stored in [0].
int next_in_order(lua_State* L, lua_Integer at) {
  int order = lua_gettop(L);
  for (;; at++) {
    if (lua_rawgeti(L, order, at) == LUA_TNIL) return 1;
    lua_pushvalue(L, -1);
    if (lua_rawget(L, 1) != LUA_TNIL) break;
    lua_pop(L, 2);
  }
  lua_pushinteger(L, at);
  lua_rawseti(L, order, 0);
  return 2;
}

// Position of the key at 2 in the list at the top, or 0.
lua_Integer place_in_order(lua_State* L) {
  int order = lua_gettop(L);
  lua_rawgeti(L, order, 0);
  lua_Integer likely = lua_tointeger(L, -1);
  lua_rawgeti(L, order, likely);
  bool found = likely > 0 && lua_rawequal(L, -1, 2);
  lua_pop(L, 2);
  if (found) return likely;
  auto size = static_cast<lua_Integer>(lua_rawlen(L, order));
  for (lua_Integer at = 1; at <= size; at++) {
    lua_rawgeti(L, order, at);
    found = lua_rawequal(L, -1, 2);
    lua_pop(L, 1);
    if (found) return at;
  }
  return 0;
}

// Whether `key` is one of 1..last.
bool within(const TableKey& key, lua_Integer last) {
  return key.rank == kNumber && key.is_integer && key.integer >= 1 && key.integer <= last;
}

// Pushes the list of keys after the key at 2. `walked` counts how many of 1..n the traversal has
// visited.
void push_later_keys(lua_State* L, lua_Integer walked) {
  Keys& keys = key_buffer();
  collect(L, 1, keys);
  sort_keys(keys);
  NoCollection pause(L, 1);
  TableKey key = key_at(L, 2);
  lua_newtable(L);
  int list = lua_gettop(L);
  lua_Integer size = 0;
  bool passed = walked > 0;  // the next keys come after the key at 2
  lua_Integer first = passed ? walked + 1 : within(key, keys.run) ? key.integer + 1 : keys.run + 1;
  if (first <= keys.run || within(key, keys.run)) passed = true;
  for (lua_Integer at = first; at <= keys.run; at++) {
    lua_pushinteger(L, at);
    lua_rawseti(L, list, ++size);
  }
  for (const TableKey& other : keys.others) {
    if (within(other, walked)) continue;
    if (!passed && other.rank != kObject && key.rank != kObject && !key_less(key, other)) continue;
    if (!passed && key.rank == kObject) {
      push_key(L, keys, other);
      passed = lua_rawequal(L, -1, 2);
      lua_pop(L, 1);
      continue;
    }
    push_key(L, keys, other);
    lua_rawseti(L, list, ++size);
  }
  if (!passed && key.rank == kObject) raise(L, "invalid key to `next`: the table does not have it");
}

int next_after(lua_State* L) {
  Sandbox& box = sandbox(L);
  lua_Integer walked = 0;
  if (box.walk_table != nullptr && lua_isinteger(L, 2) && lua_tointeger(L, 2) == box.walk_at &&
      box.walk_table == lua_topointer(L, 1)) {
    lua_Integer at = box.walk_at + 1;
    if (lua_rawgeti(L, 1, at) != LUA_TNIL) {
      box.walk_at = at;
      lua_pushinteger(L, at);
      lua_insert(L, -2);
      return 2;
    }
    lua_pop(L, 1);
    walked = box.walk_at;
    box.walk_table = nullptr;
  }
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kOrdersKey);
  lua_pushvalue(L, 1);
  if (walked == 0 && lua_rawget(L, -2) == LUA_TTABLE) {
    lua_Integer at = place_in_order(L);
    if (at > 0) return next_in_order(L, at + 1);
  }
  lua_settop(L, 3);
  push_later_keys(L, walked);
  lua_pushvalue(L, 1);
  lua_pushvalue(L, -2);
  lua_rawset(L, 3);
  return next_in_order(L, 1);
}

int flow_next(lua_State* L) {
  if (lua_type(L, 1) == LUA_TUSERDATA) reject_handle(L, 1, "next");
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 2);
  if (push_proxied_table(L, 1)) lua_replace(L, 1);
  return lua_isnil(L, 2) ? next_first(L) : next_after(L);
}

}  // namespace

void push_weak_table(lua_State* L) {
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
}

void open_order(lua_State* L, int globals) {
  push_weak_table(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kOrdersKey);
  luaL_Reg functions[] = {
      {"pairs", flow_pairs}, {"ipairs", flow_ipairs}, {"next", flow_next}, {nullptr, nullptr}};
  lua_pushvalue(L, globals);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

}  // namespace flow::lua
