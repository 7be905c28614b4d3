// require: modules in the script's folder and in the stdlib, nothing else.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

const char kLoadedKey = 0;

namespace {

constexpr size_t kNestingMax = 100;  // nested loads

// Runs a module in the phase of a load, whatever requires it, and restores the phase.
class LoadScope {
 public:
  LoadScope(lua_State* L, const std::string& name)
      : context_(context(L)), box_(sandbox(L)), phase_(context_.phase), frozen_(box_.frozen) {
    context_.phase = ScriptPhase::loading;
    box_.frozen = false;
    box_.requiring.emplace_back(name, current_location(L));
  }
  ~LoadScope() {
    context_.phase = phase_;
    box_.frozen = frozen_;
    box_.requiring.pop_back();
  }
  LoadScope(const LoadScope&) = delete;
  LoadScope& operator=(const LoadScope&) = delete;

 private:
  VmContext& context_;
  Sandbox& box_;
  ScriptPhase phase_;
  bool frozen_;
};

std::vector<std::string> module_names(lua_State* L, const std::string& name,
                                      const std::string& path) {
  std::vector<std::string> names;
  for (const Module& module : stdlib_modules()) names.emplace_back(module.name);
  for (const auto& [file, text] : *sandbox(L).files)
    names.push_back(file.substr(0, file.size() - 4));
  const std::string& folder = sandbox(L).source_folder;
  if (!folder.empty()) {
    std::error_code error;
    auto inner = std::filesystem::path(path).parent_path();
    constexpr size_t kFilesSeen = 1000;
    for (std::filesystem::directory_iterator at(folder / inner, error), end;
         !error && at != end && names.size() < kFilesSeen; at.increment(error)) {
      if (at->path().extension() == ".lua") names.push_back((inner / at->path().stem()).string());
    }
  }
  for (std::string& module : names) std::replace(module.begin(), module.end(), '/', '.');
  std::erase(names, name);  // an unreadable file
  return names;
}

[[noreturn]] void reject_missing(lua_State* L, const std::string& name, const std::string& path) {
  VmContext& ctx = context(L);
  if (sandbox(L).source_folder.empty())
    raise(L, fmt::format("the module `{}` is not among the {} files that this run was started "
                         "with; to take in new files, resume it with `--code new`",
                         name, sandbox(L).files->size()));
  raise(L,
        fmt::format("module `{}` not found: neither {}.lua nor {}/init.lua exists next to {}, and "
                    "the stdlib has no such module{}",
                    name, path, path, ctx.main, did_you_mean(name, module_names(L, name, path))));
}

void remember(lua_State* L, const std::string& name) {  // the module at the top
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kLoadedKey);
  lua_pushvalue(L, -2);
  lua_setfield(L, -2, name.c_str());
  lua_pop(L, 1);
}

// Runs the chunk at the top with require's arguments.
void run_module(lua_State* L, const std::string& name, const std::string& path) {
  lua_pushlstring(L, name.data(), name.size());
  lua_pushlstring(L, path.data(), path.size());
  lua_call(L, 2, 1);
}

void load_stdlib(lua_State* L, const Module& module) {
  std::string name(module.name);
  {
    LoadScope scope(L, name);
    Status loaded = push_chunk(L, "stdlib/" + name, std::string(module.text));
    if (!loaded.ok()) raise(L, loaded.error().message);
    run_module(L, name, "");
    if (lua_type(L, -1) == LUA_TTABLE && !push_proxied_table(L, -1)) {
      reject_missing_names(L, name);
      push_read_only_proxy(L, name);
    }
    name_library(L, lua_gettop(L), name);
  }
  remember(L, name);
}

void load_file(lua_State* L, const std::string& name, const std::string& path,
               const std::string& text) {
  Sandbox& box = sandbox(L);
  ScriptPhase outer = context(L).phase;
  {
    LoadScope scope(L, name);
    auto& files = *box.files;
    bool known = std::any_of(files.begin(), files.end(),
                             [&](const auto& file) { return file.first == path; });
    if (!known) files.emplace_back(path, text);
    Status loaded = push_chunk(L, path, text);
    if (!loaded.ok()) {
      std::string message = loaded.error().message;
      lua_pushlstring(L, message.data(), message.size());
      lua_error(L);
    }
    run_module(L, name, path);
  }
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kLoadedKey);
    if (lua_getfield(L, -1, name.c_str()) == LUA_TNIL) {
      lua_pop(L, 1);
      lua_pushboolean(L, 1);
    }
    lua_remove(L, -2);
  }
  remember(L, name);
  if (outer == ScriptPhase::building) fill_codes(L);
}

void check_not_waiting(lua_State* L, const std::string& name) {
  const auto& requiring = sandbox(L).requiring;
  auto first = std::find_if(requiring.begin(), requiring.end(),
                            [&](const auto& entry) { return entry.first == name; });
  if (first != requiring.end()) {
    std::string chain;
    for (auto at = first; at != requiring.end(); ++at)
      chain += fmt::format("{} ({}:{}) → ", at->first, at->second.file, at->second.line);
    raise(L, fmt::format("modules require each other in a cycle: {}{}; move what both need into a "
                         "third module",
                         chain, name));
  }
  if (requiring.size() >= kNestingMax)
    raise(L, fmt::format("{} modules wait for each other to load", requiring.size()));
}

int flow_require(lua_State* L) {
  std::string name = check_text(L, 1, "the name given to require");
  lua_settop(L, 1);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kLoadedKey);
  if (lua_getfield(L, 2, name.c_str()) != LUA_TNIL) return 1;
  lua_settop(L, 1);
  check_not_waiting(L, name);
  if (const Module* module = stdlib_module(name)) {
    load_stdlib(L, *module);
    return 1;
  }
  if (context(L).phase == ScriptPhase::task)
    raise(L, fmt::format(
                 "require(\"{}\") inside a task: the script has not loaded this module, and "
                 "a task finds only modules that the script had loaded; require it at the top of "
                 "the file",
                 name));
  std::string path = name;
  std::replace(path.begin(), path.end(), '.', '/');
  if (path.find('\\') != std::string::npos || !is_inner_path(path))
    raise(L, fmt::format("require(\"{}\"): a module's name is words with dots between them, as in "
                         "`a.b` for a/b.lua next to the script",
                         name));
  for (const char* ending : {".lua", "/init.lua"}) {
    std::string file = path + ending;
    std::optional<std::string> text = sandbox(L).read_source(file);
    if (!text) continue;
    load_file(L, name, file, *text);
    lua_pushlstring(L, file.data(), file.size());
    return 2;
  }
  reject_missing(L, name, path);
}

}  // namespace

bool is_inner_path(std::string_view path) {
  if (path.empty() || path.find('\0') != std::string_view::npos) return false;
  while (true) {
    size_t end = path.find('/');
    std::string_view part = path.substr(0, end);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == std::string_view::npos) return true;
    path.remove_prefix(end + 1);
  }
}

Status push_chunk(lua_State* L, const std::string& path, const std::string& text) {
  std::string_view code = text;
  if (code.starts_with("\xef\xbb\xbf")) code.remove_prefix(3);
  if (code.starts_with(
          "#")) {  // a line for the shell; its newline stays, so lines keep their number
    size_t end = code.find('\n');
    code.remove_prefix(end == std::string_view::npos ? code.size() : end);
  }
  if (code.starts_with("\x1b"))
    return user_error(fmt::format("{}: this is compiled Lua; flow loads source text only", path));
  std::string chunk = "@" + path;
  if (luaL_loadbufferx(L, code.data(), code.size(), chunk.c_str(), "t") == LUA_OK) return {};
  size_t size;
  const char* message = lua_tolstring(L, -1, &size);
  bool has_place = std::string_view(message, size).find(':') != std::string_view::npos;
  Status status = user_error(has_place ? std::string(message, size)
                                       : fmt::format("{}: {}: it nests too deep", path, message));
  lua_pop(L, 1);
  return status;
}

const Module* stdlib_module(std::string_view name) {
  const auto& modules = stdlib_modules();
  auto found = std::find_if(modules.begin(), modules.end(),
                            [&](const Module& module) { return module.name == name; });
  return found == modules.end() ? nullptr : &*found;
}

bool push_stdlib_field(lua_State* L, std::string_view field) {
  std::string name = "flow." + std::string(field);
  const Module* module = stdlib_module(name);
  if (module == nullptr) return false;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kLoadedKey);
  if (lua_getfield(L, -1, name.c_str()) != LUA_TNIL) return true;
  check_not_waiting(L, name);
  load_stdlib(L, *module);
  return true;
}

void load_remaining(lua_State* L, const Bundle& bundle) {
  for (const auto& [path, text] : bundle.files) {
    const auto& loaded = *sandbox(L).files;
    if (std::any_of(loaded.begin(), loaded.end(),
                    [&, &path = path](auto& file) { return file.first == path; }))
      continue;
    std::string name = path.substr(0, path.rfind('.'));
    if (name.ends_with("/init")) name.resize(name.size() - 5);
    std::replace(name.begin(), name.end(), '/', '.');
    load_file(L, name, path, text);
    lua_pop(L, 1);
  }
}

void open_modules(lua_State* L, int globals) {
  lua_newtable(L);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kLoadedKey);
  lua_setfield(L, -2, "loaded");
  lua_pushliteral(L, "./?.lua;./?/init.lua");
  lua_setfield(L, -2, "path");
  lua_pushliteral(L, "");
  lua_setfield(L, -2, "cpath");
  lua_pushliteral(L, "/\n;\n?\n!\n-\n");
  lua_setfield(L, -2, "config");
  lua_setfield(L, globals, "package");
  lua_pushcfunction(L, flow_require);
  lua_setfield(L, globals, "require");
}

}  // namespace flow::lua
