// table.sort: stable, by merging.
#include <algorithm>

#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

namespace {

constexpr uint32_t kInsertionMax = 8;  // shorter runs are sorted by insertion
constexpr lua_Integer kSortMax = INT32_MAX;

struct StableSorter {
  lua_State* L;
  int items;    // stack index of a plain list of the items
  bool called;  // an order function is at 2

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
  if (lua_type(L, 1) == LUA_TUSERDATA) reject_handle(L, 1, "table.sort");
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
  StableSorter sorter{L, 3, called};
  sorter.sort(order.data(), order.data() + size, room.data());
  if (called) {
    // One more pass detects an inconsistent order, such as `<=`.
    for (uint32_t i = 0; i + 1 < size; i++)
      if (sorter.less(order[i + 1], order[i]))
        raise(L,
              "invalid order function for sorting: it returns true for two items in both orders; "
              "write `<`, not `<=`");
  }
  for (uint32_t i = 0; i < size; i++) {
    if (order[i] == i) continue;
    lua_rawgeti(L, 3, order[i] + 1);
    lua_seti(L, 1, i + 1);
  }
  return 0;
}

}  // namespace

void open_sort(lua_State* L, int table_library) {
  table_library = lua_absindex(L, table_library);
  lua_pushcfunction(L, flow_sort);
  lua_setfield(L, table_library, "sort");
}

}  // namespace flow::lua
