// flow.kernel(name, source, signature, options): checked while the script loads, compiled at its
// first call.
#include "lua/tensor/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/device.hpp"
#include "kernels/jit/call.hpp"
#include "lua/sandbox/sandbox.hpp"
#include "lua/state/arguments.hpp"
#include "lua/state/graph_builder.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

const char kKernelKey = 0;

constexpr int64_t kPerThreadMax = 1 << 20;
constexpr size_t kNameMax = 100;
constexpr size_t kFoundMin = 16;  // bytes of the shortest source that is searched for in a file

struct KernelHolder {
  jit::ScriptKernel* program;
};

[[noreturn]] void reject(lua_State* L, const std::string& name, const std::string& why) {
  raise(L, fmt::format("flow.kernel of `{}`: {}", name, why));
}

// ---- where the source is defined

size_t lines_before(std::string_view text, size_t at) {
  return static_cast<size_t>(
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

// A source is usually a long string of a loaded file, where its lines can be counted; of several
// equal ones, the nearest to the call is used.
void locate_source(lua_State* L, jit::KernelSource& source) {
  source.file = "kernel " + source.name;
  if (source.text.size() < kFoundMin) return;
  ScriptLocation call = current_location(L);
  for (const auto& [path, text] : *sandbox(L).files) {
    if (path != call.file) continue;
    size_t best = SIZE_MAX;
    for (size_t at = text.find(source.text); at != std::string::npos;
         at = text.find(source.text, at + 1)) {
      auto line = static_cast<uint32_t>(lines_before(text, at) + 1);
      size_t distance = line > call.line ? line - call.line : call.line - line;
      if (distance > best) break;
      best = distance;
      source.file = path;
      source.line = line;
    }
  }
}

// ---- the script's arguments

std::string check_kernel_name(lua_State* L) {
  std::string name = check_text(L, 1, "the name of flow.kernel");
  auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  if (name.empty() || name.size() > kNameMax || std::isdigit(static_cast<unsigned char>(name[0])) ||
      !std::all_of(name.begin(), name.end(), fits))
    raise(L,
          fmt::format("flow.kernel: `{}` is not a valid name of a `__global__` function: up to {} "
                      "letters, digits and _, no digit first",
                      name.substr(0, kNameMax), kNameMax));
  return name;
}

std::vector<std::string> read_compiler_options(lua_State* L, const std::string& name, int options) {
  std::vector<std::string> found;
  if (lua_getfield(L, options, "options") != LUA_TNIL) {
    if (!lua_istable(L, -1))
      reject(L, name,
             fmt::format("`options` is a list such as {{ \"--use_fast_math\" }}, not {}",
                         kind_text(L, -1)));
    for (lua_Integer i = 1; lua_rawgeti(L, -1, i) != LUA_TNIL; i++) {
      std::string option = check_text(L, lua_gettop(L), "an option of the compiler");
      Status good = jit::check_option(option);
      if (good.ok() && found.size() == jit::kOptionsMax) good = user_error("too many `options`");
      if (!good.ok()) reject(L, name, good.error().message);
      found.push_back(std::move(option));
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return found;
}

jit::KernelSource read_source(lua_State* L, int options) {
  jit::KernelSource source;
  source.name = check_kernel_name(L);
  source.text = check_text(L, 2, fmt::format("the source of the kernel `{}`", source.name));
  if (source.text.size() > jit::kSourceMax || source.text.find('\0') != std::string::npos)
    reject(L, source.name,
           fmt::format("its source is C++ of up to {} bytes, without zero bytes", jit::kSourceMax));
  std::string signature =
      check_text(L, 3, fmt::format("the signature of the kernel `{}`", source.name));
  auto parsed = jit::parse_signature(signature);
  if (!parsed.ok()) reject(L, source.name, "its signature: " + parsed.error().message);
  source.signature = std::move(*parsed);
  Status includes = jit::check_includes(source.text);
  if (!includes.ok()) reject(L, source.name, includes.error().message);
  source.options = read_compiler_options(L, source.name, options);
  locate_source(L, source);
  return source;
}

void check_functions(lua_State* L, const std::string& name, int options) {
  for (const char* field : {"fallback", "gradient"}) {
    if (lua_getfield(L, options, field) != LUA_TNIL && !is_callable(L, lua_gettop(L)))
      reject(L, name, fmt::format("`{}` is a function, not {}", field, kind_text(L, -1)));
    lua_pop(L, 1);
  }
}

void check_gradient(lua_State* L, const jit::KernelSource& source, int options) {
  bool has = lua_getfield(L, options, "gradient") != LUA_TNIL;
  lua_pop(L, 1);
  if (!has) return;
  bool one = source.signature.count(jit::ParameterRole::out) == 1;
  if (!one || source.signature.count(jit::ParameterRole::inout) > 0)
    reject(L, source.name, "a kernel with a `gradient` has one `out` and no `inout`");
}

// Checks constant sizes here, so that no GPU is needed to find the error.
void check_launch(lua_State* L, const std::string& name, int options) {
  jit::Grid grid;
  int64_t per_thread = 1;
  auto read = [&](const char* field, int count_max, int64_t* out) {
    int type = lua_getfield(L, options, field);
    if (type != LUA_TNIL && type != LUA_TFUNCTION)
      read_sizes(L, fmt::format("`{}` of the kernel `{}`", field, name), lua_gettop(L), count_max,
                 out);
    lua_pop(L, 1);
    return type;
  };
  int blocks = read("grid", 3, grid.blocks), threads = read("block", 3, grid.threads);
  read("shared", 1, &grid.shared);
  int per = read("per_thread", 1, &per_thread);
  Status good = jit::check_grid(grid);
  if (!good.ok()) reject(L, name, good.error().message);
  if (per == LUA_TFUNCTION || per_thread < 1 || per_thread > kPerThreadMax)
    reject(L, name, fmt::format("`per_thread` is a number, 1 to {}", kPerThreadMax));
  if (blocks != LUA_TNIL && per != LUA_TNIL)
    reject(L, name, "`per_thread` and `grid` exclude each other: leave one out");
  bool flat = threads != LUA_TFUNCTION && grid.threads[1] * grid.threads[2] == 1;
  if (blocks == LUA_TNIL && !flat)
    reject(L, name, "a `block` of several dimensions, or of a function, needs a `grid`");
}

// Every `out` without `like` has a function for its shape.
void check_shapes(lua_State* L, const jit::KernelSource& source, int options) {
  std::vector<std::string> open;
  for (const jit::KernelParameter& each : source.signature.parameters)
    if (each.role == jit::ParameterRole::out && each.of < 0) open.push_back(each.name);
  int type = lua_getfield(L, options, "shape");
  int shape = lua_gettop(L);
  if (type == LUA_TTABLE) {
    check_options(L, shape, fmt::format("`shape` of the kernel `{}`", source.name).c_str(), open);
    for (const std::string& name : open)
      if (lua_getfield(L, shape, name.c_str()) != LUA_TFUNCTION)
        reject(L, source.name, fmt::format("`shape.{}` is a function of the arguments", name));
  } else if (type != LUA_TNIL && (type != LUA_TFUNCTION || open.size() != 1)) {
    reject(L, source.name,
           "`shape` is a function of the arguments, for the one `out` without `like`; for "
           "several a table, shape = { y = function(…) … end }");
  } else if (type == LUA_TNIL && !open.empty()) {
    reject(L, source.name,
           fmt::format("the shape of `{0}` is not known: write `{0}: out … like x`, or the option "
                       "shape = function{1} return … end",
                       open.front(), source.signature.given_text()));
  }
  lua_settop(L, shape - 1);
}

const std::vector<std::string>& known_options() {
  static const std::vector<std::string> names{"block", "grid",     "shared",   "per_thread",
                                              "shape", "fallback", "gradient", "options"};
  return names;
}

// Pushes a copy that the script cannot change: the key and the call use the same options.
void push_options_copy(lua_State* L, const jit::KernelSource& source, int options) {
  lua_createtable(L, 0, 12);
  int copied = lua_gettop(L);
  for (const std::string& name : known_options()) {
    if (lua_getfield(L, options, name.c_str()) == LUA_TTABLE) {
      lua_newtable(L);
      lua_pushnil(L);
      while (lua_next(L, -3)) {
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_rawset(L, -4);
      }
      lua_remove(L, -2);
    }
    lua_setfield(L, copied, name.c_str());
  }
  auto put = [&](const char* field, const std::string& text) {
    lua_pushlstring(L, text.data(), text.size());
    lua_setfield(L, copied, field);
  };
  put("name", source.name);
  put("source", source.text);
  put("signature", jit::text_of(source.signature));
}

int make_kernel(lua_State* L) {
  if (lua_gettop(L) > 4)
    raise(L, "flow.kernel takes a name, a source, a signature and a table of options");
  lua_settop(L, 4);
  if (lua_isnil(L, 4)) {
    lua_newtable(L);
    lua_replace(L, 4);
  }
  check_options(L, 4, "flow.kernel", known_options());
  jit::KernelSource source = read_source(L, 4);
  check_functions(L, source.name, 4);
  check_gradient(L, source, 4);
  check_launch(L, source.name, 4);
  check_shapes(L, source, 4);
  auto* holder = static_cast<KernelHolder*>(lua_newuserdatauv(L, sizeof(KernelHolder), 1));
  holder->program = nullptr;
  set_metatable(L, &kKernelKey);
  push_options_copy(L, source, 4);
  lua_setiuservalue(L, -2, 1);
  holder->program = new jit::ScriptKernel(std::move(source));
  return 1;
}

// ---- a kernel's own functions

int drop_kernel(lua_State* L) {
  auto* holder = static_cast<KernelHolder*>(lua_touserdata(L, 1));
  delete std::exchange(holder->program, nullptr);
  return 0;
}

int kernel_text(lua_State* L) {
  const jit::ScriptKernel* program = test_kernel(L, 1);
  std::string text = program == nullptr ? "kernel" : "kernel " + program->source().name;
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

int arch_of_this_gpu(lua_State* L, const std::string& name) {
  Result<int> count = cuda::device_count();
  if (!count.ok() || *count == 0)
    raise(L, fmt::format("the kernel `{}` is compiled for a GPU, and this machine has none: name "
                         "an architecture, k:compile(\"sm_90\")",
                         name));
  Result<cuda::DeviceInfo> info = cuda::describe(0);
  if (!info.ok()) raise(L, info.error().message);
  return info->major * 10 + info->minor;
}

// k:compile([arch]): compiles it, or finds it in the cache; true
int compile(lua_State* L) {
  const jit::ScriptKernel* program = test_kernel(L, 1);
  if (program == nullptr) raise(L, "k:compile() is called on a kernel, with a colon");
  require_task(L, "k:compile");
  const std::string& name = program->source().name;
  int arch = 0;
  if (lua_isnoneornil(L, 2)) {
    arch = arch_of_this_gpu(L, name);
  } else {
    arch = jit::parse_arch(check_text(L, 2, "the architecture of k:compile"));
    if (arch == 0) raise(L, "an architecture is named as \"sm_90\"");
  }
  Result<jit::KernelImage> image = program->image(arch, kernel_cache(L));
  if (!image.ok()) raise(L, image.error().message);
  lua_pushboolean(L, true);
  return 1;
}

}  // namespace

jit::ScriptKernel* test_kernel(lua_State* L, int index) {
  auto* holder = static_cast<KernelHolder*>(test_object(L, index, &kKernelKey));
  return holder == nullptr ? nullptr : holder->program;
}

void push_kernel_table(lua_State* L, int index) { lua_getiuservalue(L, index, 1); }

int push_kernel_field(lua_State* L, int index, const char* field) {
  push_kernel_table(L, index);
  int type = lua_getfield(L, -1, field);
  lua_remove(L, -2);
  return type;
}

bool kernel_has(lua_State* L, int index, const char* field) {
  bool has = push_kernel_field(L, index, field) != LUA_TNIL;
  lua_pop(L, 1);
  return has;
}

jit::Cache kernel_cache(lua_State* L) {
  const AttemptRequest* request = context(L).request;
  return jit::Cache(request == nullptr ? "" : request->state_dir + "/kernels");
}

void open_kernels(lua_State* L, int flow_table) {
  flow_table = lua_absindex(L, flow_table);
  if (new_metatable(L, &kKernelKey, "kernel")) {
    luaL_Reg functions[] = {{"__gc", drop_kernel},
                            {"__tostring", kernel_text},
                            {"__call", protected_call<call_kernel>},
                            {nullptr, nullptr}};
    luaL_setfuncs(L, functions, 0);
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, compile);
    lua_setfield(L, -2, "compile");
    lua_setfield(L, -2, "__index");
  }
  lua_pop(L, 1);
  lua_pushcfunction(L, make_kernel);
  lua_setfield(L, flow_table, "kernel");
}

}  // namespace flow::lua
