// Parameters: their descriptions in a script, and their values from a caller, a JSON file or the
// command line.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "engine/base/remote_url.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/plan/remote_origin.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {

const char kParamKey = 0, kParamsKey = 0;

namespace {

constexpr const char* kTypes[] = {"int",  "number", "string", "boolean",
                                  "path", "files",  "choice", "list"};

std::string number_text(double number) { return to_json(Value(number)); }

std::string bound_text(double bound) {
  bool whole = std::floor(bound) == bound && std::abs(bound) < 1e15;
  return whole ? std::to_string(static_cast<int64_t>(bound)) : number_text(bound);
}

/// The value with display_url() in place of each URL, which may have secrets.
Value hide_url_secrets(const Value& value) {
  if (value.kind() == Value::Kind::string && is_remote_url(value.as_string()))
    return Value(display_url(value.as_string()));
  if (value.kind() != Value::Kind::table) return value;
  Value::Table table = value.as_table();
  for (Value& item : table.list) item = hide_url_secrets(item);
  for (auto& [key, field] : table.fields) field = hide_url_secrets(field);
  return Value(std::move(table));
}

std::string shown(const Value& given) {
  Value value = hide_url_secrets(given);
  constexpr size_t kShown = 80;
  if (value.kind() == Value::Kind::file) return "the file " + value.as_file().name;
  std::string text = value.kind() == Value::Kind::string ? value.as_string() : to_json(value);
  return "`" + (text.size() > kShown ? text.substr(0, kShown) + "…" : text) + "`";
}

std::string form_of(const std::string& type) {
  if (type == "int") return "a whole number";
  if (type == "number") return "a number";
  if (type == "boolean") return "true or false";
  if (type == "path") return "a path in a string";
  return "a string";
}

// Lua's own pattern matching. Without `^` or `$` the whole text must match.
bool matches(const std::string& text, const std::string& pattern, std::string& problem) {
  std::unique_ptr<lua_State, void (*)(lua_State*)> holder(luaL_newstate(), lua_close);
  lua_State* L = holder.get();
  FLOW_CHECK(L != nullptr);
  luaL_requiref(L, "string", luaopen_string, 0);
  lua_getfield(L, -1, "find");
  bool anchored = pattern.starts_with('^') || (pattern.ends_with('$') && !pattern.ends_with("%$"));
  std::string whole = anchored ? pattern : "^" + pattern + "$";
  lua_pushlstring(L, text.data(), text.size());
  lua_pushlstring(L, whole.data(), whole.size());
  if (lua_pcall(L, 2, 1, 0) != LUA_OK) {
    problem = lua_tostring(L, -1);
    return false;
  }
  return lua_type(L, -1) != LUA_TNIL;
}

class ParamCoercer {
 public:
  /// `folder`: the base of relative paths. `lister` lists the files of a pattern; without it a
  /// pattern stays as it is. `from_text`: the value is from the command line.
  ParamCoercer(const ParamSpec& spec, std::string folder, InputLister lister, bool from_text)
      : spec_(spec),
        folder_(std::move(folder)),
        lister_(std::move(lister)),
        from_text_(from_text) {}

  std::string problem;

  Value fit(const Value& value) {
    if (spec_.type == "list") return list(value);
    if (spec_.type == "files") return files(value);
    Value fitted = spec_.type == "choice" ? choice(value) : scalar(spec_.type, value);
    return problem.empty() ? check(fitted) : Value();
  }

 private:
  Value wrong(const std::string& form, const Value& value) {
    problem = fmt::format("must be {}, but is {}", form, shown(value));
    return {};
  }

  // ---- types

  Value scalar(const std::string& type, const Value& value) {
    if (from_text_ && value.kind() == Value::Kind::string) return parsed(type, value);
    switch (value.kind()) {
      case Value::Kind::integer:
        if (type == "int") return value;
        if (type == "number") return Value(value.as_number());
        break;
      case Value::Kind::number: {
        double number = value.as_number();
        if (type == "number" && !std::isnan(number)) return value;
        bool whole = std::floor(number) == number && std::abs(number) < 0x1p53;
        if (type == "int" && whole) return Value(static_cast<int64_t>(number));
        break;
      }
      case Value::Kind::boolean:
        if (type == "boolean") return value;
        break;
      case Value::Kind::string:
        if (type == "string") return value;
        if (type == "path") return path(value.as_string());
        break;
      case Value::Kind::file:
        if (type == "path") return value;
        break;
      default:
        break;
    }
    return wrong(form_of(type), value);
  }

  Value parsed(const std::string& type, const Value& value) {
    const std::string& text = value.as_string();
    const char *begin = text.data(), *end = begin + text.size();
    if (begin != end && *begin == '+') begin++;
    if (type == "int") {
      int64_t number;
      auto [stop, code] = std::from_chars(begin, end, number);
      if (code == std::errc() && stop == end) return Value(number);
      return wrong(form_of(type), value);
    }
    if (type == "number") {
      double number;
      auto [stop, code] = std::from_chars(begin, end, number);
      if (code == std::errc() && stop == end && !std::isnan(number)) return Value(number);
      return wrong(form_of(type), value);
    }
    if (type == "boolean") {
      if (text == "true") return Value(true);
      if (text == "false") return Value(false);
      return wrong(form_of(type), value);
    }
    return type == "path" ? path(text) : value;
  }

  Value path(const std::string& text) {
    namespace fs = std::filesystem;
    if (text.empty() || text.find('\0') != std::string::npos) {
      problem = "must be a path in a string, but is empty";
      return {};
    }
    if (is_remote_url(text)) return remote(text);
    fs::path full = (fs::path(folder_) / text).lexically_normal();
    File file;
    file.anonymous = true;
    file.origin = full.string();
    while (file.origin.size() > 1 && file.origin.back() == '/') file.origin.pop_back();
    file.name = fs::path(file.origin).filename().string();
    return Value(std::move(file));
  }

  Value remote(const std::string& url) {
    auto file = remote_file({url, std::nullopt, false});
    if (!file.ok()) {
      problem = "cannot be used: " + file.error().message;
      return {};
    }
    file->anonymous = true;
    return Value(std::move(*file));
  }

  // A pattern, `@FILE` with names, or a list of paths.
  Value files(const Value& value) {
    if (value.kind() != Value::Kind::string) return list(value);
    const std::string& text = value.as_string();
    if (from_text_ && text.starts_with('[')) return list(value);
    if (text.empty() || text.find('\0') != std::string::npos) {
      problem = "must be a pattern of paths in a string, but is empty";
      return {};
    }
    if (!lister_) return value;
    auto listed = list_files(lister_, {folder_, text, false});
    if (!listed.ok()) {
      problem = "names no files: " + listed.error().message;
      return {};
    }
    std::vector<Value> all;
    for (File& file : *listed) all.emplace_back(std::move(file));
    return Value::list(std::move(all));
  }

  // As flow.files gives it: its name is part of the cache key.
  Value named_file(const Value& value) {
    Value item = scalar("path", value);
    if (item.kind() != Value::Kind::file) return item;
    File file = item.as_file();
    file.anonymous = false;
    return Value(std::move(file));
  }

  Value choice(const Value& value) {
    bool is_text = value.kind() == Value::Kind::string;
    const std::vector<std::string>& all = spec_.choices;
    if (is_text && std::find(all.begin(), all.end(), value.as_string()) != all.end()) return value;
    wrong("one of " + join(all), value);
    if (is_text) problem += did_you_mean(value.as_string(), all);
    return {};
  }

  Value list(const Value& value) {
    Value items = value;
    if (from_text_ && value.kind() == Value::Kind::string) {
      const std::string& text = value.as_string();
      size_t start = text.find_first_not_of(" \t\n");
      bool is_json = start != std::string::npos && text[start] == '[';
      if (is_json) {
        auto read = from_json(text);
        if (!read.ok()) {
          problem = "must be a list, but its JSON can't be read: " + read.error().message;
          return {};
        }
        items = *read;
        return each_item(items, false);
      }
      items = split(text);
      return each_item(items, true);
    }
    return each_item(items, false);
  }

  static Value split(const std::string& text) {
    std::vector<Value> items;
    for (size_t start = 0; !text.empty() && start <= text.size();) {
      size_t comma = std::min(text.find(',', start), text.size());
      size_t first = std::min(text.find_first_not_of(" \t", start), comma);
      size_t last = comma;
      while (last > first && (text[last - 1] == ' ' || text[last - 1] == '\t')) last--;
      items.emplace_back(text.substr(first, last - first));
      start = comma + 1;
    }
    return Value::list(std::move(items));
  }

  Value each_item(const Value& items, bool text) {
    bool is_list = items.kind() == Value::Kind::table && items.as_table().fields.empty();
    if (!is_list) return wrong("a list", items);
    std::vector<Value> fitted;
    bool outer = from_text_;
    from_text_ = text;
    for (const Value& item : items.as_table().list) {
      if (item.kind() == Value::Kind::ref) {  // of an inlined pipeline: known at run time
        fitted.push_back(item);
        continue;
      }
      Value one = check(spec_.type == "files" ? named_file(item) : scalar(spec_.of, item));
      if (!problem.empty()) {
        problem = fmt::format("has an item {} that {}", fitted.size() + 1, problem);
        break;
      }
      fitted.push_back(std::move(one));
    }
    from_text_ = outer;
    return problem.empty() ? Value::list(std::move(fitted)) : Value();
  }

  // ---- bounds

  Value check(Value value) {
    if (!problem.empty()) return {};
    bool is_text = value.kind() == Value::Kind::string;
    bool is_number = value.kind() == Value::Kind::integer || value.kind() == Value::Kind::number;
    if (is_text || is_number) {
      double size = is_text ? static_cast<double>(value.as_string().size()) : value.as_number();
      const char* unit = is_text ? " bytes long" : "";
      if (spec_.min && size < *spec_.min)
        problem = fmt::format("must be at least {}{}, but is {}", bound_text(*spec_.min), unit,
                              shown(value));
      if (spec_.max && size > *spec_.max)
        problem = fmt::format("must be at most {}{}, but is {}", bound_text(*spec_.max), unit,
                              shown(value));
    }
    if (problem.empty() && is_text && !spec_.pattern.empty()) {
      std::string broken;
      if (!matches(value.as_string(), spec_.pattern, broken))
        problem = broken.empty() ? fmt::format("must match the Lua pattern `{}`, but is {}",
                                               spec_.pattern, shown(value))
                                 : fmt::format("has a pattern that is wrong: {}", broken);
    }
    return problem.empty() ? value : Value();
  }

  const ParamSpec& spec_;
  const std::string folder_;
  const InputLister lister_;
  bool from_text_;
};

// ---- descriptions

struct ParamHolder {
  Parameter parameter;
};

int param_collect(lua_State* L) {
  if (auto* holder = static_cast<ParamHolder*>(test_object(L, 1, &kParamKey)))
    holder->~ParamHolder();
  return 0;
}

std::vector<std::string> fields_of(const std::string& type) {
  std::vector<std::string> fields{"default", "help"};
  bool bounded = type == "int" || type == "number" || type == "string" || type == "list";
  if (bounded) fields.insert(fields.end(), {"min", "max"});
  if (type == "string" || type == "list") fields.emplace_back("pattern");
  if (type == "list") fields.emplace_back("of");
  return fields;
}

void read_bound(lua_State* L, const std::string& name, std::optional<double>& bound) {
  if (lua_type(L, -1) != LUA_TNUMBER)
    raise(L,
          fmt::format("`{}` of a parameter must be a number, but is {}", name, kind_text(L, -1)));
  bound = lua_tonumber(L, -1);
}

// The value at the top is the field `name` of a description.
void read_field(lua_State* L, ParamSpec& spec, const std::string& name) {
  if (name == "help") {
    spec.help = check_text(L, -1, "`help` of a parameter");
  } else if (name == "pattern") {
    spec.pattern = check_text(L, -1, "`pattern` of a parameter");
  } else if (name == "of") {
    spec.of = check_text(L, -1, "`of` of a list parameter");
    static const std::vector<std::string> kOf = {"int", "number", "string", "boolean", "path"};
    if (std::find(kOf.begin(), kOf.end(), spec.of) == kOf.end())
      raise(L, fmt::format("`of` of a list parameter must be one of {}, but is `{}`{}", join(kOf),
                           spec.of, did_you_mean(spec.of, kOf)));
  } else if (name == "min" || name == "max") {
    read_bound(L, name, name == "min" ? spec.min : spec.max);
  } else {
    auto value = read_graph_value(L, -1, "default", 0, Refs::none);
    if (!value.ok()) raise(L, "a parameter " + value.error().message);
    spec.has_default = true;
    spec.default_value = std::move(*value);
  }
}

void read_choices(lua_State* L, ParamSpec& spec) {
  auto length = static_cast<lua_Integer>(lua_rawlen(L, 1));
  for (lua_Integer i = 1; i <= length; i++) {
    lua_rawgeti(L, 1, i);
    spec.choices.push_back(check_text(L, -1, "a choice"));
    lua_pop(L, 1);
  }
  if (spec.choices.empty())
    raise(L,
          "flow.param.choice has no choices: write flow.param.choice { \"a\", \"b\", default = "
          "\"a\" }");
}

void read_description(lua_State* L, ParamSpec& spec) {
  if (lua_isnoneornil(L, 1)) return;
  if (lua_type(L, 1) != LUA_TTABLE)
    raise(L, fmt::format("flow.param.{0} takes a table, flow.param.{0} {{ default = … }}, not {1}",
                         spec.type, kind_text(L, 1)));
  std::vector<std::string> known = fields_of(spec.type);
  lua_pushnil(L);
  while (lua_next(L, 1)) {
    bool is_choice = spec.type == "choice" && lua_isinteger(L, -2);
    if (!is_choice) {
      std::string name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : kind_text(L, -2);
      if (std::find(known.begin(), known.end(), name) == known.end())
        raise(L, fmt::format("flow.param.{} has no field `{}`{}; its fields are: {}", spec.type,
                             name, did_you_mean(name, known), join(known)));
      read_field(L, spec, name);
    }
    lua_pop(L, 1);
  }
  if (spec.min && spec.max && *spec.min > *spec.max)
    raise(L, fmt::format("flow.param.{}: `min` is above `max`", spec.type));
}

// Upvalue 1 is the type's name.
int make_param(lua_State* L) {
  lua_settop(L, 1);
  auto* holder = static_cast<ParamHolder*>(lua_newuserdatauv(L, sizeof(ParamHolder), 0));
  new (holder) ParamHolder();
  set_metatable(L, &kParamKey);
  holder->parameter.where = text_of(current_location(L));
  ParamSpec& spec = holder->parameter.spec;
  spec.type = lua_tostring(L, lua_upvalueindex(1));
  if (spec.type == "list") spec.of = "string";
  if (spec.type == "choice" && lua_type(L, 1) == LUA_TTABLE) read_choices(L, spec);
  read_description(L, spec);
  if (spec.type == "choice" && spec.choices.empty()) read_choices(L, spec);
  if (!spec.has_default) return 1;
  std::string problem;
  // A default pattern lists its files when it is used.
  spec.default_value = coerce_param(spec, spec.default_value, context(L).root, nullptr, problem);
  if (!problem.empty()) raise(L, fmt::format("`default` of flow.param.{} {}", spec.type, problem));
  return 1;
}

int unknown_type(lua_State* L) {
  std::vector<std::string> types(std::begin(kTypes), std::end(kTypes));
  std::string name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : kind_text(L, 2);
  raise(L, fmt::format("flow.param.{} does not exist{}; there are: {}", name,
                       did_you_mean(name, types), join(types)));
}

// ---- what a body sees

int unknown_param(lua_State* L) {
  std::vector<std::string> names;
  lua_pushnil(L);
  while (lua_next(L, 1)) {
    names.emplace_back(lua_tostring(L, -2));
    lua_pop(L, 1);
  }
  std::sort(names.begin(), names.end());
  std::string name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : kind_text(L, 2);
  raise(L, fmt::format("the pipeline has no parameter `{}`{}; {}", name, did_you_mean(name, names),
                       names.empty() ? "it has none" : "its parameters are: " + join(names)));
}

}  // namespace

void push_params(lua_State* L, const Value& params) {
  push_value(L, params);
  if (new_metatable(L, &kParamsKey, "parameters")) {
    lua_pushcfunction(L, unknown_param);
    lua_setfield(L, -2, "__index");
  }
  lua_setmetatable(L, -2);
}

const Parameter* test_param(lua_State* L, int index) {
  auto* holder = static_cast<ParamHolder*>(test_object(L, index, &kParamKey));
  return holder == nullptr ? nullptr : &holder->parameter;
}

Value coerce_param(const ParamSpec& spec, const Value& value, const std::string& folder,
                   const InputLister& lister, std::string& problem) {
  if (value.kind() == Value::Kind::ref) return value;  // of an inlined pipeline: known at run time
  ParamCoercer coercer(spec, folder, lister, false);
  Value fitted = coercer.fit(value);
  problem = coercer.problem;
  return fitted;
}

void open_params(lua_State* L, int flow) {
  if (new_metatable(L, &kParamKey, "parameter")) {
    lua_pushcfunction(L, param_collect);
    lua_setfield(L, -2, "__gc");
  }
  lua_pop(L, 1);
  lua_createtable(L, 0, static_cast<int>(std::size(kTypes)));
  for (const char* type : kTypes) {
    lua_pushstring(L, type);
    lua_pushcclosure(L, make_param, 1);
    lua_setfield(L, -2, type);
  }
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, unknown_type);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  lua_setfield(L, flow, "param");
}

// ---- binding

namespace {

struct ParamInput {
  Value value;
  bool from_text = false;
};

// A missing path would be found only when the run starts, and then without the parameter's name.
// `start` names the base of relative paths.
std::string missing_file(const Value& value, const char* start) {
  if (value.kind() == Value::Kind::table) {
    for (const Value& item : value.as_table().list) {
      std::string problem = missing_file(item, start);
      if (!problem.empty()) return problem;
    }
    return "";
  }
  if (value.kind() != Value::Kind::file) return "";
  const File& file = value.as_file();
  struct stat info {};
  if (!file.digest.is_zero() || file.origin.empty() || is_remote_origin(file.origin)) return "";
  if (::stat(file.origin.c_str(), &info) == 0) return "";
  int code = errno;
  std::string broken = broken_link(file.origin);
  if (!broken.empty()) return fmt::format("names `{}`, {}", file.origin, broken);
  if (code == ENOENT || code == ENOTDIR)
    return fmt::format("names `{}`, which does not exist: {}", file.origin, start);
  return fmt::format("names `{}`, which cannot be read: {}", file.origin, std::strerror(code));
}

}  // namespace

std::vector<Error> bind_params(const PipelineObject& pipeline, const BuildRequest& request,
                               const std::string& root, Value& out) {
  std::vector<Error> errors;
  std::vector<std::string> names;
  std::map<std::string, ParamInput> given;
  for (const Parameter& parameter : pipeline.params) names.push_back(parameter.spec.name);
  if (request.params.kind() == Value::Kind::table) {
    if (!request.params.as_table().list.empty())
      errors.push_back(user_error("the parameters are names with values, not a list"));
    for (const auto& [key, value] : request.params.as_table().fields)
      given[key.kind() == Value::Kind::string ? key.as_string() : to_json(key)] = {value, false};
  }
  for (const auto& [name, text] : request.text_params) given[name] = {Value(text), true};

  for (const auto& [name, value] : given) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    errors.push_back(user_error(fmt::format(
        "{}unknown parameter `{}`{}; {}", pipeline.where, name, did_you_mean(name, names),
        names.empty() ? "the pipeline has none" : "the parameters are: " + join(names))));
  }
  std::vector<std::pair<Value, Value>> bound;
  for (const auto& param : pipeline.params) {
    const ParamSpec& spec = param.spec;
    const std::string& where = param.where;
    auto problem = [&](const std::string& text) {
      errors.push_back(user_error(fmt::format("{}the parameter `{}` {}{}", where, spec.name, text,
                                              spec.help.empty() ? "" : " (" + spec.help + ")")));
    };
    Value value;
    auto found = given.find(spec.name);
    if (found == given.end()) {
      if (!spec.has_default) {
        problem(fmt::format("is required: give it with --param {}=…", spec.name));
        continue;
      }
      std::string wrong;
      value = coerce_param(spec, spec.default_value, root, request.list_inputs, wrong);
      if (!wrong.empty()) {
        problem(wrong);
        continue;
      }
    } else {
      ParamCoercer coercer(spec, request.working_directory, request.list_inputs,
                           found->second.from_text);
      value = coercer.fit(found->second.value);
      if (!coercer.problem.empty()) {
        problem(coercer.problem);
        continue;
      }
    }
    std::string missing = missing_file(
        value, found == given.end() ? "a relative default starts at the script's folder"
                                    : "a relative path starts at the working directory");
    if (!missing.empty()) {
      problem(missing);
      continue;
    }
    bound.emplace_back(Value(spec.name), std::move(value));
  }
  out = Value::map(std::move(bound));
  return errors;
}

}  // namespace flow::lua
