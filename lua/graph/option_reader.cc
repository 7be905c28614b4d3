#include "lua/graph/option_reader.hpp"

#include "engine/base/size_units.hpp"

namespace flow::lua {

void Option::wrong(const std::string& form) const {
  std::string given = kind_text(L, index);
  int type = lua_type(L, index);
  if (type == LUA_TNUMBER || type == LUA_TSTRING) {
    lua_pushvalue(L, index);
    given = fmt::format("`{}`", lua_tostring(L, -1));
    lua_pop(L, 1);
  } else if (type == LUA_TBOOLEAN) {
    given = lua_toboolean(L, index) ? "`true`" : "`false`";
  }
  reject(fmt::format(" must be {}, but is {}", form, given));
}

void Option::reject(const std::string& clause) const {
  raise(L, fmt::format("task `{}`: the option `{}`{}", def.name, name, clause));
}

std::string Option::text(const std::string& form) const {
  if (lua_type(L, index) != LUA_TSTRING) wrong(form);
  size_t size;
  const char* data = lua_tolstring(L, index, &size);
  if (size > kOptionTextMax) reject(fmt::format(" has more than {} bytes", kOptionTextMax));
  return {data, size};
}

void Option::reject_quoted(const std::string& form, int type) const {
  if (lua_type(L, index) != LUA_TSTRING) return;
  std::string given = lua_tostring(L, index);
  bool is_quoted =
      type == LUA_TNUMBER ? lua_isnumber(L, index) != 0 : given == "true" || given == "false";
  if (is_quoted)
    reject(
        fmt::format(" must be {}, but is the string \"{}\": write it without quotes", form, given));
}

double Option::number(double min, double max, const std::string& form) const {
  reject_quoted(form, LUA_TNUMBER);
  if (lua_type(L, index) != LUA_TNUMBER) wrong(form);
  double value = lua_tonumber(L, index);
  if (!(value >= min && value <= max)) wrong(form);
  return value;
}

lua_Integer Option::integer(lua_Integer min, lua_Integer max, const std::string& form) const {
  reject_quoted(form, LUA_TNUMBER);
  int is_integer;
  lua_Integer value = lua_tointegerx(L, index, &is_integer);
  if (lua_type(L, index) != LUA_TNUMBER || !is_integer || value < min || value > max) wrong(form);
  return value;
}

bool Option::boolean() const {
  reject_quoted("true or false", LUA_TBOOLEAN);
  if (lua_type(L, index) != LUA_TBOOLEAN) wrong("true or false");
  return lua_toboolean(L, index) != 0;
}

int64_t Option::bytes() const {
  constexpr const char* kForm = "a size such as \"2GiB\" or a number of bytes";
  if (lua_type(L, index) == LUA_TNUMBER) return integer(1, lua_Integer{1} << 62, kForm);
  int64_t size = parsed(parse_bytes(text(kForm)));
  if (size == 0) wrong("a size above 0");
  return size;
}

std::string Option::duration(const char* example) const {
  std::string form = fmt::format("a duration such as \"{}\"", example);
  if (lua_type(L, index) == LUA_TNUMBER) {
    lua_pushvalue(L, index);
    reject(fmt::format(" must be {}, but is the number {}: write a string with the unit", form,
                       lua_tostring(L, -1)));
  }
  return text(form);
}

int64_t Option::duration_ms(const char* example) const {
  return parsed(parse_duration_ms(duration(example)));
}

int64_t Option::duration_us(const char* example) const {
  return parsed(parse_duration_us(duration(example)));
}

void need_table(const Option& option, const char* form) {
  if (lua_type(option.L, option.index) != LUA_TTABLE) option.wrong(form);
}

std::vector<std::string> text_list(const Option& option, const char* form) {
  need_table(option, form);
  std::vector<std::string> texts;
  lua_State* L = option.L;
  auto length = static_cast<lua_Integer>(lua_rawlen(L, option.index));
  for (lua_Integer i = 1; i <= length; i++) {
    lua_rawgeti(L, option.index, i);
    texts.push_back(
        Option{L, option.def, fmt::format("{}[{}]", option.name, i), lua_gettop(L)}.text(
            "a string"));
    lua_pop(L, 1);
  }
  lua_pushnil(L);
  while (lua_next(L, option.index)) {
    if (!lua_isinteger(L, -2) || lua_tointeger(L, -2) > length || lua_tointeger(L, -2) < 1)
      option.wrong(form);
    lua_pop(L, 1);
  }
  return texts;
}

std::vector<std::string> entry_names(const Option& option, const std::vector<std::string>& known,
                                     lua_Integer listed) {
  lua_State* L = option.L;
  std::vector<std::string> names;
  lua_pushnil(L);
  while (lua_next(L, option.index)) {
    lua_pop(L, 1);
    bool is_listed =
        lua_isinteger(L, -1) && lua_tointeger(L, -1) >= 1 && lua_tointeger(L, -1) <= listed;
    if (is_listed) continue;
    size_t size = 0;
    const char* text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &size) : nullptr;
    std::string name = text != nullptr        ? std::string(text, size)
                       : lua_isinteger(L, -1) ? fmt::format("[{}]", lua_tointeger(L, -1))
                                              : kind_text(L, -1);
    bool fits = text != nullptr &&
                (known.empty() || std::find(known.begin(), known.end(), name) != known.end());
    if (!fits)
      option.reject(fmt::format(" has the unknown entry `{}`{}{}", name, did_you_mean(name, known),
                                known.empty() ? "" : "; it has: " + join(known)));
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace flow::lua
