// Calls that record where an error was raised: the running Lua functions, one line per function.
#include <fmt/format.h>

#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

namespace {

constexpr int kFramesShown = 12;  // of a traceback, at each end

std::string function_text(const lua_Debug& frame) {
  if (frame.name != nullptr && frame.name[0] != '\0')
    return fmt::format("in function `{}`", frame.name);
  if (std::string_view(frame.what) == "main") return "at the top of the file";
  return fmt::format("in function <{}:{}>", frame.short_src, frame.linedefined);
}

// The deepest level, by binary search: lua_getstack takes time in proportion to the level.
int last_level(lua_State* L) {
  lua_Debug frame;
  int low = 0, high = 1;
  while (lua_getstack(L, high, &frame)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    (lua_getstack(L, middle, &frame) ? low : high) = middle;
  }
  return low;
}

// The Lua functions from level `from` to `to`, one line per function.
void append_frames(lua_State* L, int from, int to, std::string& text) {
  lua_Debug frame;
  for (int level = from; level <= to && lua_getstack(L, level, &frame); level++) {
    lua_getinfo(L, "Slnt", &frame);
    if (frame.currentline <= 0) continue;
    if (!text.empty()) text += '\n';
    text += fmt::format("{}:{}: {}", frame.short_src, frame.currentline, function_text(frame));
  }
}

// Converts the message to text and stores the traceback.
int on_error(lua_State* L) {
  if (lua_touserdata(L, 1) == &kUnwindKey) return 1;
  sandbox(L).traceback = traceback_text(L);
  if (lua_type(L, 1) == LUA_TSTRING) return 1;
  push_error_text(L, 1);
  return 1;
}

}  // namespace

std::string traceback_text(lua_State* L) {
  std::string text;
  int last = last_level(L);
  if (last <= 2 * kFramesShown) {
    append_frames(L, 1, last, text);
    return text;
  }
  append_frames(L, 1, kFramesShown, text);
  text += fmt::format("\n… ({} more)", last - 2 * kFramesShown);
  append_frames(L, last - kFramesShown + 1, last, text);
  return text;
}

int call_traced(lua_State* L, int arguments, int results) {
  int handler = lua_gettop(L) - arguments;
  sandbox(L).traceback.clear();
  lua_pushcfunction(L, on_error);
  lua_insert(L, handler);
  int status = lua_pcall(L, arguments, results, handler);
  lua_remove(L, handler);
  return status;
}

std::string error_text(lua_State* L, int status) {
  if (status != LUA_ERRRUN && status != LUA_ERRMEM && status != LUA_ERRERR)
    return "an error inside a library function";  // a C++ exception has no message in Lua
  size_t size = 0;
  const char* text = lua_tolstring(L, -1, &size);
  return text == nullptr ? "an error without a message" : std::string(text, size);
}

}  // namespace flow::lua
