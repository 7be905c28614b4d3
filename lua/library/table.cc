// flow.table: functions on lists and tables. Keys are visited in the order of pairs.
#include <fmt/format.h>

#include "lua/sandbox/sandbox.hpp"
#include "lua/state/arguments.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

constexpr int kCopyDepthMax = 200;

lua_Integer length_of(lua_State* L, int index) {
  return static_cast<lua_Integer>(lua_rawlen(L, index));
}

// Calls f with key and value at the top, in order; f leaves the stack unchanged.
template <typename F>
void each_entry(lua_State* L, int table, F f) {
  table = lua_absindex(L, table);
  luaL_checkstack(L, 8, "tables nested too deep");
  auto count = static_cast<lua_Integer>(push_ordered_keys(L, table));
  int keys = lua_gettop(L);
  for (lua_Integer i = 1; i <= count; i++) {
    lua_rawgeti(L, keys, i);
    lua_pushvalue(L, -1);
    lua_rawget(L, table);
    f();
    lua_settop(L, keys);
  }
  lua_pop(L, 1);
}

bool is_list(lua_State* L, int index) {
  lua_Integer count = 0;
  lua_pushnil(L);
  while (lua_next(L, index)) {
    count++;
    lua_pop(L, 1);
  }
  return count == length_of(L, index);
}

void check_function(lua_State* L, int index, const char* function) {
  if (lua_type(L, index) != LUA_TFUNCTION)
    raise(L, fmt::format("{} takes a function, not {}", function, describe(L, index)));
}

bool adds(lua_State* L, int index) {
  return lua_type(L, index) == LUA_TNUMBER || is_tensor(L, index);
}

// sum[key] = sum[key] + value, for every key of the item at the top.
void add_entries(lua_State* L, int sum, lua_Integer number) {
  int item = lua_gettop(L);
  each_entry(L, item, [&] {
    int key = lua_gettop(L) - 1;
    if (!adds(L, key + 1))
      raise(L, fmt::format("flow.table.sum: `{}` of item {} is {}, not a number",
                           luaL_tolstring(L, key, nullptr), number, describe(L, key + 1)));
    lua_pushvalue(L, key);
    if (lua_rawget(L, sum) != LUA_TNIL) {
      lua_pushvalue(L, key + 1);
      lua_arith(L, LUA_OPADD);
    } else {
      lua_pushvalue(L, key + 1);
    }
    lua_pushvalue(L, key);
    lua_insert(L, -2);
    lua_rawset(L, sum);
  });
}

// The sum of a list of numbers or tensors; for a list of tables, a table of sums by key.
int sum(lua_State* L) {
  check_list(L, 1, "flow.table.sum");
  lua_settop(L, 1);
  lua_Integer count = length_of(L, 1);
  if (count > 0) lua_rawgeti(L, 1, 1);
  bool tables = count == 0 || lua_type(L, -1) == LUA_TTABLE;
  lua_settop(L, 1);
  if (tables) lua_newtable(L);
  for (lua_Integer i = 1; i <= count; i++) {
    lua_rawgeti(L, 1, i);
    bool fits = tables ? lua_type(L, -1) == LUA_TTABLE : adds(L, -1);
    if (!fits) {
      const void* light = lua_touserdata(L, -1);
      std::string given = light == &kNullKey      ? "flow.null"
                          : light == &kMissingKey ? "flow.missing"
                                                  : describe(L, -1);
      if (i == 1) raise(L, "flow.table.sum takes numbers, tensors or tables; item 1 is " + given);
      raise(L, fmt::format("flow.table.sum: item {} is {}; the first is {}", i, given,
                           tables ? "a table" : "a number"));
    }
    if (tables) {
      add_entries(L, 2, i);
      lua_settop(L, 2);
    } else if (i > 1) {
      lua_arith(L, LUA_OPADD);
    }
  }
  return 1;
}

// f(value, key) of every entry, under the same keys.
int map(lua_State* L) {
  check_list(L, 1, "flow.table.map");
  check_function(L, 2, "flow.table.map");
  lua_settop(L, 2);
  lua_newtable(L);
  each_entry(L, 1, [&] {
    int key = lua_gettop(L) - 1;
    lua_pushvalue(L, key);
    lua_pushvalue(L, 2);
    lua_pushvalue(L, key + 1);
    lua_pushvalue(L, key);
    lua_call(L, 2, 1);
    lua_rawset(L, 3);
  });
  return 1;
}

// The entries for which f(value, key) is true: of a list a list, of a table a table.
int filter(lua_State* L) {
  check_list(L, 1, "flow.table.filter");
  check_function(L, 2, "flow.table.filter");
  lua_settop(L, 2);
  bool list = is_list(L, 1);
  lua_Integer kept = 0;
  lua_newtable(L);
  each_entry(L, 1, [&] {
    int key = lua_gettop(L) - 1;
    lua_pushvalue(L, 2);
    lua_pushvalue(L, key + 1);
    lua_pushvalue(L, key);
    lua_call(L, 2, 1);
    if (!lua_toboolean(L, -1)) return;
    lua_pop(L, 1);
    if (list) {
      lua_rawseti(L, 3, ++kept);
    } else {
      lua_rawset(L, 3);
    }
  });
  return 1;
}

// f(accumulator, value, key) of every entry in order, starting with the third argument.
int reduce(lua_State* L) {
  check_list(L, 1, "flow.table.reduce");
  check_function(L, 2, "flow.table.reduce");
  lua_settop(L, 3);
  each_entry(L, 1, [&] {
    int key = lua_gettop(L) - 1;
    lua_pushvalue(L, 2);
    lua_pushvalue(L, 3);
    lua_pushvalue(L, key + 1);
    lua_pushvalue(L, key);
    lua_call(L, 3, 1);
    lua_replace(L, 3);
  });
  return 1;
}

int keys(lua_State* L) {
  check_list(L, 1, "flow.table.keys");
  push_ordered_keys(L, 1);
  return 1;
}

int values(lua_State* L) {
  check_list(L, 1, "flow.table.values");
  lua_settop(L, 1);
  lua_newtable(L);
  lua_Integer count = 0;
  each_entry(L, 1, [&] { lua_rawseti(L, 2, ++count); });
  return 1;
}

// A new table with the entries of all; later ones win.
int merge(lua_State* L) {
  int count = lua_gettop(L);
  lua_newtable(L);
  int out = lua_gettop(L);
  for (int i = 1; i <= count; i++) {
    check_list(L, i, "flow.table.merge");
    lua_pushnil(L);
    while (lua_next(L, i)) {
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, out);
    }
  }
  return 1;
}

void push_copy(lua_State* L, int index, int depth) {
  index = lua_absindex(L, index);
  if (depth > kCopyDepthMax)
    raise(L, fmt::format("flow.table.copy: tables nest deeper than {}, or one contains itself",
                         kCopyDepthMax));
  luaL_checkstack(L, 6, "tables nested too deep");
  lua_newtable(L);
  int out = lua_gettop(L);
  lua_pushnil(L);
  while (lua_next(L, index)) {
    lua_pushvalue(L, -2);
    if (lua_type(L, -2) == LUA_TTABLE) {
      push_copy(L, -2, depth + 1);
    } else {
      lua_pushvalue(L, -2);
    }
    lua_rawset(L, out);
    lua_pop(L, 1);
  }
}

int copy(lua_State* L) {  // a deep copy; tensors are shared
  check_list(L, 1, "flow.table.copy");
  push_copy(L, 1, 1);
  return 1;
}

// Whether item `a` sorts before `b` in the list at 3, by the function at 2 or by <.
bool comes_before(lua_State* L, lua_Integer a, lua_Integer b) {
  bool before;
  if (lua_isnil(L, 2)) {
    lua_rawgeti(L, 3, a);
    lua_rawgeti(L, 3, b);
    before = lua_compare(L, -2, -1, LUA_OPLT);
    lua_pop(L, 2);
  } else {
    lua_pushvalue(L, 2);
    lua_rawgeti(L, 3, a);
    lua_rawgeti(L, 3, b);
    lua_call(L, 2, 1);
    before = lua_toboolean(L, -1);
    lua_pop(L, 1);
  }
  return before;
}

// A sorted copy of a list; equal items keep their order.
int sorted(lua_State* L) {
  check_list(L, 1, "flow.table.sorted");
  lua_settop(L, 2);
  if (!lua_isnil(L, 2)) check_function(L, 2, "flow.table.sorted");
  lua_Integer count = length_of(L, 1);
  lua_createtable(L, static_cast<int>(std::min<lua_Integer>(count, 1 << 24)), 0);
  for (lua_Integer i = 1; i <= count; i++) {
    lua_rawgeti(L, 1, i);
    lua_rawseti(L, 3, i);
  }
  std::vector<lua_Integer> order(static_cast<size_t>(count)), merged(order.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = static_cast<lua_Integer>(i) + 1;
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t start = 0; start < order.size(); start += 2 * width) {
      size_t middle = std::min(start + width, order.size());
      size_t end = std::min(start + 2 * width, order.size());
      size_t left = start, right = middle;
      for (size_t to = start; to < end; to++) {
        bool take_right =
            right < end && (left >= middle || comes_before(L, order[right], order[left]));
        merged[to] = take_right ? order[right++] : order[left++];
      }
    }
    order.swap(merged);
  }
  lua_createtable(L, static_cast<int>(std::min<lua_Integer>(count, 1 << 24)), 0);
  for (size_t i = 0; i < order.size(); i++) {
    lua_rawgeti(L, 3, order[i]);
    lua_rawseti(L, 4, static_cast<lua_Integer>(i) + 1);
  }
  return 1;
}

int count(lua_State* L) {  // all entries, also those that # does not count
  check_list(L, 1, "flow.table.count");
  lua_Integer entries = 0;
  lua_pushnil(L);
  while (lua_next(L, 1)) {
    entries++;
    lua_pop(L, 1);
  }
  lua_pushinteger(L, entries);
  return 1;
}

int contains(lua_State* L) {  // contains(t, value)
  check_list(L, 1, "flow.table.contains");
  lua_settop(L, 2);
  bool found = false;
  lua_pushnil(L);
  while (!found && lua_next(L, 1)) {
    found = lua_compare(L, -1, 2, LUA_OPEQ);
    lua_pop(L, 1);
  }
  lua_pushboolean(L, found);
  return 1;
}

int slice(lua_State* L) {  // slice(list, a, b): items a..b, as far as they exist
  check_list(L, 1, "flow.table.slice");
  lua_Integer last = std::min(luaL_optinteger(L, 3, LUA_MAXINTEGER), length_of(L, 1));
  lua_Integer first = std::max<lua_Integer>(luaL_checkinteger(L, 2), 1);
  lua_newtable(L);
  for (lua_Integer i = first; i <= last; i++) {
    lua_rawgeti(L, 1, i);
    lua_rawseti(L, -2, i - first + 1);
  }
  return 1;
}

int range(lua_State* L) {  // range(n): {1, …, n}; range(a, b): {a, …, b}
  lua_Integer first = 1, last = luaL_checkinteger(L, 1);
  if (!lua_isnoneornil(L, 2)) {
    first = last;
    last = luaL_checkinteger(L, 2);
  }
  constexpr uint64_t kItemsMax = 1u << 28;
  if (last >= first && static_cast<uint64_t>(last) - static_cast<uint64_t>(first) >= kItemsMax)
    raise(L,
          fmt::format("flow.table.range: {}..{} has more than {} items", first, last, kItemsMax));
  lua_newtable(L);
  if (last < first) return 1;
  for (lua_Integer at = 0; at <= last - first; at++) {
    lua_pushinteger(L, first + at);
    lua_rawseti(L, -2, at + 1);
  }
  return 1;
}

}  // namespace

const luaL_Reg kTableFunctions[] = {{"sum", sum},       {"map", map},           {"filter", filter},
                                    {"reduce", reduce}, {"keys", keys},         {"values", values},
                                    {"merge", merge},   {"copy", copy},         {"sorted", sorted},
                                    {"count", count},   {"contains", contains}, {"slice", slice},
                                    {"range", range},   {nullptr, nullptr}};

}  // namespace flow::lua
