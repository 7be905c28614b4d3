// Collects and sorts a table's keys: numbers, strings, false, true; then objects in their original
// order.
#include "lua/state/keys.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace flow::lua {

namespace {

// Exact, as Lua compares them: 2^53 + 1 and 2.0^53 differ.
bool float_less(lua_Number a, lua_Integer b) {
  if (a < -0x1p63) return true;
  if (a >= 0x1p63) return false;
  lua_Number low = std::floor(a);
  auto whole = static_cast<lua_Integer>(low);
  return whole < b;
}

bool number_less(const TableKey& a, const TableKey& b) {
  if (a.is_integer && b.is_integer) return a.integer < b.integer;
  if (!a.is_integer && !b.is_integer) return a.number < b.number;
  if (!a.is_integer) return float_less(a.number, b.integer);
  // Keys are never equal here: Lua normalizes a float key with an integer's value.
  return !float_less(b.number, a.integer);
}

int compare_text(const TableKey& a, const TableKey& b) {
  int order = std::memcmp(a.text, b.text, std::min(a.size, b.size));
  if (order != 0) return order;
  return a.size < b.size ? -1 : a.size > b.size;
}

[[noreturn]] void reject_object_key(lua_State* L) {
  raise(L,
        "this table has keys that are objects (a table, a function, a handle), which have no "
        "order that is the same in every run; while the script loads and its graph is built a "
        "traversal must: use names or numbers as keys, or keep a separate list of keys");
}

}  // namespace

bool key_less(const TableKey& a, const TableKey& b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.rank == kNumber) return number_less(a, b);
  if (a.rank == kString) return compare_text(a, b) < 0;
  if (a.rank == kObject) return a.object < b.object;
  return false;
}

TableKey key_at(lua_State* L, int index) {
  TableKey key{};
  switch (lua_type(L, index)) {
    case LUA_TNUMBER:
      key.rank = kNumber;
      key.is_integer = lua_isinteger(L, index);
      if (key.is_integer) {
        key.integer = lua_tointeger(L, index);
      } else {
        key.number = lua_tonumber(L, index);
      }
      break;
    case LUA_TSTRING:
      key.rank = kString;
      key.text = lua_tolstring(L, index, &key.size);
      break;
    case LUA_TBOOLEAN:
      key.rank = lua_toboolean(L, index) ? kTrue : kFalse;
      break;
    default:
      key.rank = kObject;
  }
  return key;
}

void collect(lua_State* L, int table, Keys& keys, bool allows_objects) {
  keys.run = 0;
  keys.others.clear();
  keys.objects = 0;
  lua_Integer objects = 0;
  lua_pushnil(L);
  while (lua_next(L, table)) {
    lua_pop(L, 1);
    if (lua_isinteger(L, -1) && lua_tointeger(L, -1) == keys.run + 1) {
      keys.run++;
      continue;
    }
    TableKey key = key_at(L, -1);
    if (key.rank == kObject) {
      if (!allows_objects && context(L).phase != ScriptPhase::task) reject_object_key(L);
      if (keys.objects == 0) {
        lua_newtable(L);
        lua_insert(L, -2);
        keys.objects = lua_gettop(L) - 1;
      }
      key.object = ++objects;
      lua_pushvalue(L, -1);
      lua_rawseti(L, keys.objects, objects);
    }
    keys.others.push_back(key);
  }
}

void sort_keys(Keys& keys) {
  auto& others = keys.others;
  if (!std::is_sorted(others.begin(), others.end(), key_less))
    std::sort(others.begin(), others.end(), key_less);
  // Integers of the hash part may continue the array part.
  bool continues = false;
  for (const TableKey& key : others) {
    if (key.rank != kNumber) break;
    continues = continues || (key.is_integer && key.integer == keys.run + 1);
  }
  if (!continues) return;
  auto end = std::remove_if(others.begin(), others.end(), [&](const TableKey& key) {
    bool next = key.rank == kNumber && key.is_integer && key.integer == keys.run + 1;
    if (next) keys.run++;
    return next;
  });
  others.erase(end, others.end());
}

void push_key(lua_State* L, const Keys& keys, const TableKey& key) {
  switch (key.rank) {
    case kNumber:
      if (key.is_integer) return lua_pushinteger(L, key.integer);
      return lua_pushnumber(L, key.number);
    case kString:
      lua_pushlstring(L, key.text, key.size);
      return;
    case kObject:
      lua_rawgeti(L, keys.objects, key.object);
      return;
    default:
      lua_pushboolean(L, key.rank == kTrue);
  }
}

// No Lua code runs, so the strings are not collected.
void push_others(lua_State* L, int table, const Keys& keys) {
  NoCollection pause(L, table);
  lua_createtable(L, static_cast<int>(keys.others.size()), 0);
  lua_Integer at = 0;
  for (const TableKey& key : keys.others) {
    push_key(L, keys, key);
    lua_rawseti(L, -2, ++at);
  }
}

Keys& key_buffer() {
  static thread_local Keys keys;
  constexpr size_t kKept = 1 << 16;  // keys; a larger buffer is freed
  if (keys.others.capacity() > kKept) std::vector<TableKey>().swap(keys.others);
  return keys;
}

size_t push_ordered_keys(lua_State* L, int index) {
  index = lua_absindex(L, index);
  Keys& keys = key_buffer();
  int top = lua_gettop(L);
  collect(L, index, keys, true);
  sort_keys(keys);
  NoCollection pause(L, index);
  auto size = static_cast<size_t>(keys.run) + keys.others.size();
  lua_createtable(L, static_cast<int>(size), 0);
  lua_Integer at = 0;
  while (at < keys.run) {
    at++;
    lua_pushinteger(L, at);
    lua_rawseti(L, -2, at);
  }
  for (const TableKey& key : keys.others) {
    push_key(L, keys, key);
    lua_rawseti(L, -2, ++at);
  }
  lua_insert(L, top + 1);
  lua_settop(L, top + 1);
  return size;
}

}  // namespace flow::lua
