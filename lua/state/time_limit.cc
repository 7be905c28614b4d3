#include "lua/state/time_limit.hpp"

#include "engine/base/clock.hpp"

namespace flow::lua {

namespace {

constexpr int64_t kLimitUs = 1'000'000;
constexpr int kInstructionsPerCheck = 100'000;
thread_local int64_t deadline_us = 0;
thread_local const char* message_of_limit = nullptr;

void check_time(lua_State* L, lua_Debug*) {
  if (monotonic_us() >= deadline_us) luaL_error(L, "%s", message_of_limit);
}

}  // namespace

TimeLimit::TimeLimit(lua_State* L, const char* message) : L_(L) {
  deadline_us = monotonic_us() + kLimitUs;
  message_of_limit = message;
  lua_sethook(L, check_time, LUA_MASKCOUNT, kInstructionsPerCheck);
}

TimeLimit::~TimeLimit() { lua_sethook(L_, nullptr, 0, 0); }

}  // namespace flow::lua
