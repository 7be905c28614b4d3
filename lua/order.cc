// The one order in which a script sees a table's keys, and the one number it sees of an object.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lua/sandbox.hpp"

namespace flow::lua {

const char kNumbersKey = 0, kOrdersKey = 0;

namespace {

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

// Exact, as Lua compares them: 2^53 + 1 and 2.0^53 differ.
bool float_less(lua_Number a, lua_Integer b) {
  if (a < -0x1p63) return true;
  if (a >= 0x1p63) return false;
  lua_Number low = std::floor(a);
  auto whole = static_cast<lua_Integer>(low);
  return whole < b;
}

bool number_less(const Key& a, const Key& b) {
  if (a.is_integer && b.is_integer) return a.integer < b.integer;
  if (!a.is_integer && !b.is_integer) return a.number < b.number;
  if (!a.is_integer) return float_less(a.number, b.integer);
  // Keys are never equal here: a float with an integer's value is that integer.
  return !float_less(b.number, a.integer);
}

int compare_text(const Key& a, const Key& b) {
  int order = std::memcmp(a.text, b.text, std::min(a.size, b.size));
  if (order != 0) return order;
  return a.size < b.size ? -1 : a.size > b.size;
}

bool key_less(const Key& a, const Key& b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.rank == kNumber) return number_less(a, b);
  if (a.rank == kString) return compare_text(a, b) < 0;
  if (a.rank == kObject) return a.object < b.object;
  return false;
}

Key key_at(lua_State* L, int index) {
  Key key{};
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

// A table's keys: `run` counts 1..n, `others` are the rest, sorted. Reused by the next table: the
// buffer is not held while Lua code runs.
struct Keys {
  lua_Integer run = 0;
  std::vector<Key> others;
  int objects = 0;  // stack index of a list of object keys, or 0
};

[[noreturn]] void refuse_object_key(lua_State* L) {
  raise(L,
        "this table has keys that are objects (a table, a function, a handle), and these have no "
        "order that is the same in every run; while the script loads and its graph is built a "
        "traversal must: use names or numbers as keys, or keep a list beside the table");
}

void collect(lua_State* L, int table, Keys& keys, bool allows_objects = false) {
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
    Key key = key_at(L, -1);
    if (key.rank == kObject) {
      if (!allows_objects && context(L).phase != Phase::task) refuse_object_key(L);
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

void settle(Keys& keys) {
  auto& others = keys.others;
  if (!std::is_sorted(others.begin(), others.end(), key_less))
    std::sort(others.begin(), others.end(), key_less);
  // Integers of the hash part may go on where the array part ended.
  bool goes_on = false;
  for (const Key& key : others) {
    if (key.rank != kNumber) break;
    goes_on = goes_on || (key.is_integer && key.integer == keys.run + 1);
  }
  if (!goes_on) return;
  auto end = std::remove_if(others.begin(), others.end(), [&](const Key& key) {
    bool next = key.rank == kNumber && key.is_integer && key.integer == keys.run + 1;
    if (next) keys.run++;
    return next;
  });
  others.erase(end, others.end());
}

void push_key(lua_State* L, const Keys& keys, const Key& key) {
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

// Pushes the list of `others`. No Lua code runs, so the texts stay where they are.
void push_others(lua_State* L, int table, const Keys& keys) {
  NoCollection pause(L, table);
  lua_createtable(L, static_cast<int>(keys.others.size()), 0);
  lua_Integer at = 0;
  for (const Key& key : keys.others) {
    push_key(L, keys, key);
    lua_rawseti(L, -2, ++at);
  }
}

Keys& key_buffer() {
  static thread_local Keys keys;
  constexpr size_t kKept = 1 << 16;  // keys; a larger buffer is given back
  if (keys.others.capacity() > kKept) std::vector<Key>().swap(keys.others);
  return keys;
}

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
  for (const Key& key : keys.others) push_key(L, keys, key);
  lua_pushcclosure(L, pairs_short, static_cast<int>(2 + keys.others.size()));
}

int flow_pairs(lua_State* L) {
  luaL_checkany(L, 1);
  if (lua_type(L, 1) == LUA_TUSERDATA) refuse_handle(L, 1, "pairs");
  if (lua_getmetatable(L, 1)) {
    lua_pop(L, 1);
    if (push_real(L, 1)) {
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
  settle(keys);
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
    refuse_handle(L, 1, "ipairs");
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

// ---- next: a traversal that begins at next(t) and goes on in what later calls pass

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
    // Objects have no order to find the next one by, so the order is settled now.
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kOrdersKey);
    lua_pushvalue(L, 1);
    settle(keys);
    push_others(L, 1, keys);
    lua_rawset(L, -3);
    lua_pop(L, 1);
  }
  lua_pushvalue(L, -1);
  lua_rawget(L, 1);
  return 2;
}

// Goes on in the list of keys at the top from `at`; its position is kept in [0].
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

// Where the key at 2 stands in the list at the top, or 0.
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
bool within(const Key& key, lua_Integer last) {
  return key.rank == kNumber && key.is_integer && key.integer >= 1 && key.integer <= last;
}

// Pushes the keys that come after the key at 2, as a list. `walked` counts how many of 1..n the
// traversal has been at.
void push_later_keys(lua_State* L, lua_Integer walked) {
  Keys& keys = key_buffer();
  collect(L, 1, keys);
  settle(keys);
  NoCollection pause(L, 1);
  Key key = key_at(L, 2);
  lua_newtable(L);
  int list = lua_gettop(L);
  lua_Integer size = 0;
  bool passed = walked > 0;  // what follows comes later than the key
  lua_Integer first = passed ? walked + 1 : within(key, keys.run) ? key.integer + 1 : keys.run + 1;
  if (first <= keys.run || within(key, keys.run)) passed = true;
  for (lua_Integer at = first; at <= keys.run; at++) {
    lua_pushinteger(L, at);
    lua_rawseti(L, list, ++size);
  }
  for (const Key& other : keys.others) {
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
  if (lua_type(L, 1) == LUA_TUSERDATA) refuse_handle(L, 1, "next");
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 2);
  if (push_real(L, 1)) lua_replace(L, 1);
  return lua_isnil(L, 2) ? next_first(L) : next_after(L);
}

// ---- numbers of objects

lua_Integer object_number(lua_State* L, int index) {
  index = lua_absindex(L, index);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kNumbersKey);
  lua_pushvalue(L, index);
  if (lua_rawget(L, -2) == LUA_TNUMBER) {
    lua_Integer number = lua_tointeger(L, -1);
    lua_pop(L, 2);
    return number;
  }
  lua_pop(L, 1);
  lua_Integer number = ++sandbox(L).printed;
  lua_pushvalue(L, index);
  lua_pushinteger(L, number);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  return number;
}

void push_number_text(lua_State* L, lua_Integer number) {
  char text[32];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(number));
  lua_pushstring(L, text);
}

bool is_object(lua_State* L, int index) {
  switch (lua_type(L, index)) {
    case LUA_TTABLE:
    case LUA_TFUNCTION:
    case LUA_TUSERDATA:
    case LUA_TTHREAD:
    case LUA_TLIGHTUSERDATA:
      return true;
    default:
      return false;
  }
}

int flow_tostring(lua_State* L) {
  luaL_checkany(L, 1);
  if (lua_type(L, 1) == LUA_TUSERDATA) refuse_handle(L, 1, "tostring");
  push_text(L, 1);
  return 1;
}

int flow_print(lua_State* L) {
  int count = lua_gettop(L);
  std::string line;
  for (int i = 1; i <= count; i++) {
    if (i > 1) line += '\t';
    if (lua_type(L, i) == LUA_TUSERDATA && is_handle(L, i)) {
      line += describe_handle(L, i);
      continue;
    }
    push_text(L, i);
    size_t size;
    const char* text = lua_tolstring(L, -1, &size);
    line.append(text, size);
    lua_pop(L, 1);
  }
  line += '\n';
  write_text(L, line);
  return 0;
}

// ---- the raw functions, which see through a library's face

int flow_rawget(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checkany(L, 2);
  lua_settop(L, 2);
  if (push_real(L, 1)) lua_replace(L, 1);
  lua_rawget(L, 1);
  return 1;
}

int flow_rawset(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checkany(L, 2);
  luaL_checkany(L, 3);
  lua_settop(L, 3);
  if (push_real(L, 1)) {
    lua_pop(L, 1);
    lua_settable(L, 1);  // the face checks it
  } else {
    lua_rawset(L, 1);
  }
  lua_settop(L, 1);
  return 1;
}

int flow_rawlen(lua_State* L) {
  int type = lua_type(L, 1);
  luaL_argexpected(L, type == LUA_TTABLE || type == LUA_TSTRING, 1, "table or string");
  lua_pushinteger(L, static_cast<lua_Integer>(lua_rawlen(L, 1)));
  return 1;
}

int flow_getmetatable(lua_State* L) {
  luaL_checkany(L, 1);
  if (lua_type(L, 1) == LUA_TSTRING) {
    lua_pushvalue(L, lua_upvalueindex(1));  // a face: it is frozen after the load
    return 1;
  }
  if (push_real(L, 1) || !lua_getmetatable(L, 1)) {
    lua_pushnil(L);
    return 1;
  }
  if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL) return 1;
  // A class of the stdlib is shared by every attempt, so none gets hold of it.
  if (!sandbox(L).library_names.contains(lua_topointer(L, -1))) return 1;
  lua_pushboolean(L, 0);
  return 1;
}

int flow_setmetatable(lua_State* L) {
  int type = lua_type(L, 2);
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_argexpected(L, type == LUA_TNIL || type == LUA_TTABLE, 2, "nil or table");
  lua_settop(L, 2);
  if (lua_getmetatable(L, 1)) {
    lua_pop(L, 1);
    if (push_real(L, 1))
      raise(L,
            "setmetatable of a library or of the globals: they are shared by the whole script and "
            "keep theirs; globals are strict already");
    if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL)
      raise(L, "cannot change a protected metatable");
  }
  // When a finalizer runs is the collector's choice, and attempts must not depend on it: none runs.
  bool finalizer = false;
  if (type == LUA_TTABLE) {
    lua_pushliteral(L, "__gc");
    finalizer = lua_rawget(L, 2) != LUA_TNIL;
    if (finalizer) {
      lua_pushliteral(L, "__gc");
      lua_pushnil(L);
      lua_rawset(L, 2);
    }
  }
  lua_pushvalue(L, 2);
  lua_setmetatable(L, 1);
  if (finalizer) {
    lua_pushliteral(L, "__gc");
    lua_pushvalue(L, 3);
    lua_rawset(L, 2);
  }
  lua_settop(L, 1);
  return 1;
}

// ---- table.sort: stable, by merging

constexpr uint32_t kInsertionMax = 8;  // shorter stretches are sorted by insertion
constexpr lua_Integer kSortMax = INT32_MAX;

struct Sorter {
  lua_State* L;
  int items;    // stack index of a plain list of the items
  bool called;  // there is an order function, at 2

  bool less(uint32_t a, uint32_t b) {
    bool result;
    if (called) {
      lua_pushvalue(L, 2);
      lua_rawgeti(L, items, a + 1);
      lua_rawgeti(L, items, b + 1);
      lua_call(L, 2, 1);
      result = lua_toboolean(L, -1);
      lua_pop(L, 1);
    } else {
      lua_rawgeti(L, items, a + 1);
      lua_rawgeti(L, items, b + 1);
      result = lua_compare(L, -2, -1, LUA_OPLT);
      lua_pop(L, 2);
    }
    return result;
  }

  void sort(uint32_t* from, uint32_t* to, uint32_t* room) {
    auto count = static_cast<uint32_t>(to - from);
    if (count <= kInsertionMax) {
      for (uint32_t* at = from + 1; at < to; at++) {
        uint32_t item = *at;
        uint32_t* place = at;
        for (; place > from && less(item, place[-1]); place--) *place = place[-1];
        *place = item;
      }
      return;
    }
    uint32_t* middle = from + count / 2;
    sort(from, middle, room);
    sort(middle, to, room);
    if (!less(*middle, middle[-1])) return;
    uint32_t* end = std::copy(from, middle, room);
    uint32_t *left = room, *right = middle, *out = from;
    while (left < end && right < to) *out++ = less(*right, *left) ? *right++ : *left++;
    std::copy(left, end, out);
  }
};

int flow_sort(lua_State* L) {
  if (lua_type(L, 1) == LUA_TUSERDATA) refuse_handle(L, 1, "table.sort");
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_Integer count = luaL_len(L, 1);
  bool called = !lua_isnoneornil(L, 2);
  if (called) luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  if (count < 2) return 0;
  luaL_argcheck(L, count < kSortMax, 1, "array too big");
  lua_createtable(L, static_cast<int>(count), 0);
  for (lua_Integer at = 1; at <= count; at++) {
    lua_geti(L, 1, at);
    lua_rawseti(L, 3, at);
  }
  auto size = static_cast<uint32_t>(count);
  std::vector<uint32_t> order(size), room(size / 2 + 1);
  for (uint32_t i = 0; i < size; i++) order[i] = i;
  Sorter sorter{L, 3, called};
  sorter.sort(order.data(), order.data() + size, room.data());
  if (called) {
    // One more pass finds an order that contradicts itself, such as `<=`.
    for (uint32_t i = 0; i + 1 < size; i++)
      if (sorter.less(order[i + 1], order[i]))
        raise(L,
              "invalid order function for sorting: it says of two items that each comes before "
              "the other; write `<`, not `<=`");
  }
  for (uint32_t i = 0; i < size; i++) {
    if (order[i] == i) continue;
    lua_rawgeti(L, 3, order[i] + 1);
    lua_seti(L, 1, i + 1);
  }
  return 0;
}

// ---- string.format: %s and %p of objects

bool next_directive(const char*& at, const char* end, const char*& start) {
  while (at < end) {
    if (*at++ != '%') continue;
    if (at < end && *at == '%') {
      at++;
      continue;
    }
    start = at - 1;
    while (at < end && std::strchr("-+ #0123456789.", *at) != nullptr && *at != '\0') at++;
    return at < end;
  }
  return false;
}

int flow_format(lua_State* L) {  // upvalue 1: Lua's own
  size_t size;
  const char* format = luaL_checklstring(L, 1, &size);
  int top = lua_gettop(L);
  std::string changed;
  const char *at = format, *end = format + size, *copied = format, *start = nullptr;
  for (int argument = 2; next_directive(at, end, start); argument++, at++) {
    if (argument > top) break;
    if (*at == 's' && is_object(L, argument)) {
      if (lua_type(L, argument) == LUA_TUSERDATA) refuse_handle(L, argument, "%s");
      push_text(L, argument);
      lua_replace(L, argument);
    } else if (*at == 'p' && is_object(L, argument)) {
      push_number_text(L, object_number(L, argument));
      lua_replace(L, argument);
      changed.append(copied, static_cast<size_t>(at - copied)).append("s");
      copied = at + 1;
    } else if (*at == 'p' && lua_type(L, argument) == LUA_TSTRING) {
      raise(L, "string.format: %p of a string is its place in memory, which differs in every run");
    }
  }
  if (copied != format) {
    changed.append(copied, static_cast<size_t>(end - copied));
    lua_pushlstring(L, changed.data(), changed.size());
    lua_replace(L, 1);
  }
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

void weak_table(lua_State* L, const void* key) {
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, key);
}

}  // namespace

void push_text(lua_State* L, int index) {
  index = lua_absindex(L, index);
  if (!is_object(L, index)) {
    luaL_tolstring(L, index, nullptr);
    return;
  }
  if (luaL_callmeta(L, index, "__tostring")) {
    if (!lua_isstring(L, -1)) luaL_error(L, "'__tostring' must return a string");
    return;
  }
  int index_of_text = lua_gettop(L) + 1;
  int type = luaL_getmetafield(L, index, "__name");
  const char* kind = type == LUA_TSTRING ? lua_tostring(L, -1) : luaL_typename(L, index);
  lua_Integer number = object_number(L, index);
  push_number_text(L, number);
  lua_pushfstring(L, "%s: %s", kind, lua_tostring(L, -1));
  lua_replace(L, index_of_text);
  lua_settop(L, index_of_text);
}

void push_formatted(lua_State* L, int first) {
  int count = lua_gettop(L) - first + 1;
  if (count == 1 && lua_type(L, first) != LUA_TSTRING) return push_text(L, first);
  lua_getfield(L, LUA_REGISTRYINDEX, "flow.format");
  lua_insert(L, first);
  lua_call(L, count, 1);
}

void forget_printed(lua_State* L) {
  Sandbox& box = sandbox(L);
  if (box.printed == box.printed_by_load) return;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kNumbersKey);
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    bool is_new = lua_tointeger(L, -1) > box.printed_by_load;
    lua_pop(L, 1);
    if (!is_new) continue;
    lua_pushvalue(L, -1);
    lua_pushnil(L);
    lua_rawset(L, -4);
  }
  lua_pop(L, 1);
  box.printed = box.printed_by_load;
}

size_t push_ordered_keys(lua_State* L, int index) {
  index = lua_absindex(L, index);
  Keys& keys = key_buffer();
  int top = lua_gettop(L);
  collect(L, index, keys, true);
  settle(keys);
  NoCollection pause(L, index);
  auto size = static_cast<size_t>(keys.run) + keys.others.size();
  lua_createtable(L, static_cast<int>(size), 0);
  lua_Integer at = 0;
  while (at < keys.run) {
    at++;
    lua_pushinteger(L, at);
    lua_rawseti(L, -2, at);
  }
  for (const Key& key : keys.others) {
    push_key(L, keys, key);
    lua_rawseti(L, -2, ++at);
  }
  lua_insert(L, top + 1);
  lua_settop(L, top + 1);
  return size;
}

void open_order(lua_State* L, int globals) {
  weak_table(L, &kNumbersKey);
  weak_table(L, &kOrdersKey);
  luaL_Reg functions[] = {
      {"pairs", flow_pairs},       {"ipairs", flow_ipairs}, {"next", flow_next},
      {"tostring", flow_tostring}, {"print", flow_print},   {"rawget", flow_rawget},
      {"rawset", flow_rawset},     {"rawlen", flow_rawlen}, {"setmetatable", flow_setmetatable},
      {nullptr, nullptr}};
  lua_pushvalue(L, globals);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
  // The strings' metatable is a face of its own, open while the script loads.
  lua_pushliteral(L, "");
  lua_getmetatable(L, -1);
  lua_remove(L, -2);
  push_face(L, "the strings' metatable");
  lua_pushcclosure(L, flow_getmetatable, 1);
  lua_setfield(L, globals, "getmetatable");
}

void open_sort(lua_State* L, int table_library) {
  table_library = lua_absindex(L, table_library);
  lua_pushcfunction(L, flow_sort);
  lua_setfield(L, table_library, "sort");
}

void open_format(lua_State* L, int string_library) {
  string_library = lua_absindex(L, string_library);
  lua_getfield(L, string_library, "format");
  lua_pushcclosure(L, flow_format, 1);
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, "flow.format");
  lua_setfield(L, string_library, "format");
}

}  // namespace flow::lua
