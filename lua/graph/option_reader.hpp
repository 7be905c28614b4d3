// An option in the table of a task, as it is being read. Every error names the task and the option.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {

constexpr size_t kOptionTextMax = 10'000;  // bytes; a command has no such limit

/// The value is at `index` of the stack.
struct Option {
  lua_State* L;
  TaskDef& def;
  std::string name;
  int index;

  /// `form` is what the option must be, with its article.
  [[noreturn]] void wrong(const std::string& form) const;
  /// Raises "task `t`: the option `name`" with the clause.
  [[noreturn]] void reject(const std::string& clause) const;
  std::string text(const std::string& form) const;
  double number(double min, double max, const std::string& form) const;
  lua_Integer integer(lua_Integer min, lua_Integer max, const std::string& form) const;
  bool boolean() const;
  int64_t bytes() const;
  int64_t duration_ms(const char* example) const;
  int64_t duration_us(const char* example) const;
  template <typename T>
  T parsed(Result<T> result) const {
    if (!result.ok()) reject(": " + result.error().message);
    return std::move(*result);
  }

 private:
  /// Rejects a string such as "1" where a value of another kind is expected.
  void reject_quoted(const std::string& form, int type) const;
  std::string duration(const char* example) const;
};

void need_table(const Option& option, const char* form);

/// The strings of a list. Raises for a table that is none.
std::vector<std::string> text_list(const Option& option, const char* form);

/// The names of the entries of a table, sorted. `known` are the allowed names; empty: any. The
/// first `listed` entries of its list have none.
std::vector<std::string> entry_names(const Option& option, const std::vector<std::string>& known,
                                     lua_Integer listed = 0);

/// Calls `read(option, name)` for each entry of the table, in the order of names.
template <typename Read>
void each_entry(const Option& option, const std::vector<std::string>& known, Read read,
                lua_Integer listed = 0) {
  lua_State* L = option.L;
  for (const std::string& name : entry_names(option, known, listed)) {
    lua_pushlstring(L, name.data(), name.size());
    lua_rawget(L, option.index);
    read(Option{L, option.def, option.name + "." + name, lua_gettop(L)}, name);
    lua_pop(L, 1);
  }
}

}  // namespace flow::lua
