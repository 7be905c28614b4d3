// The time limit of a function that the engine calls after the build.
#pragma once
#include "lua/state/vm_context.hpp"

namespace flow::lua {

/// While it exists, code of this Lua state that runs for longer than 1 s raises `message`, which
/// must outlive it. One at a time on a thread.
class TimeLimit {
 public:
  TimeLimit(lua_State* L, const char* message);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  lua_State* L_;
};

}  // namespace flow::lua
