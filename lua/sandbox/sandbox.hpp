// Shared by the files of the sandbox: what one script state remembers beside Lua's own memory.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lua/state/graph_builder.hpp"

namespace flow::lua {

// Keys of the registry.
extern const char kGlobalsKey;     // the table that holds every global: libraries' and the script's
extern const char kScriptKey;      // _ENV of every chunk: empty, reads kGlobalsKey, checks writes
extern const char kProxyKey;       // _G: reads and defines globals, nil where there is none
extern const char kLoadedKey;      // package.loaded
extern const char kNumbersKey;     // weak: object to its number in print
extern const char kOrdersKey;      // weak: table to the keys of its traversal by next
extern const char kProxiedKey;     // in a metatable: the table behind a library's face
extern const char kLibraryKey;     // in a metatable: the library's name
extern const char kExtensionsKey;  // library's name to its table, of libraries with new fields
extern const char kUnwindKey;      // the private error that ends an attempt, as a light userdata

struct RestorePool;

/// What the instructions of a Lua function say about what it needs.
struct FunctionCode {
  Digest digest;                     // of the code alone
  std::string file;                  // where it was defined
  std::vector<std::string> globals;  // names it reads, sorted
  bool all_globals = false;          // it uses _ENV or _G as a value, or loads text
  bool modules = false;              // it calls require
};

/// What a script's state remembers beside Lua's memory. Reset before every attempt.
struct Sandbox {
  enum class Unwind : uint8_t { none, waiting, stopped };

  bool silent = false;           // what the load prints was shown when the graph was built
  bool opens_files = false;      // this attempt opened files with io
  bool reached_outside = false;  // it called what may start programs or write to our streams
  bool frozen = false;           // libraries and globals take no more changes
  Unwind unwind = Unwind::none;
  bool waited = false;  // this attempt called ctx:wait
  std::string signal, wait_name;
  int64_t wait_timeout_ms = -1;
  std::string line;  // written by io.write, not yet ended

  uint64_t random[4] = {};
  bool random_seeded = false;  // false: `seed` is spread out at the first use
  uint64_t seed = 0;
  lua_Integer printed = 0;  // objects numbered so far
  lua_Integer printed_by_load = 0;

  // The traversal that `next` is in, where it walks 1..n.
  const void* walk_table = nullptr;
  lua_Integer walk_at = 0;

  // Modules.
  std::function<std::optional<std::string>(const std::string&)> read_source;
  std::vector<std::pair<std::string, std::string>>* files = nullptr;  // of the bundle
  std::vector<std::pair<std::string, ScriptLocation>> requiring;      // and where, innermost last
  std::string source_folder;                                          // "": files are all there is
  std::string traceback;                                              // of the last error

  std::unordered_map<const void*, std::string> library_names;  // functions, tables and their faces
  std::unordered_set<std::string> library_globals;  // names that the script can't replace
  std::unordered_set<std::string> declared;         // globals of the script, once set

  // Fields that the load added to libraries: (library, field), sorted; at kAdditionsKey the tables.
  std::set<std::pair<std::string, std::string>> library_extensions;
  std::unordered_map<const void*, FunctionCode> function_codes;
  std::shared_ptr<RestorePool> restore_pool;

  // Of the attempt that runs: names used so far and how often, the step that it is in ("outer/").
  std::unordered_map<std::string, uint32_t> step_names, wait_names;
  std::string step_path;
};

Sandbox& sandbox(lua_State* L);

/// Every table and function that can be reached from the library value at `index` by names is the
/// library's: "string.format".
void name_library(lua_State* L, int index, const std::string& name);
/// Replaces the table at the top by a face of it that is read-only after the load.
void push_read_only_proxy(lua_State* L, const std::string& name);
/// The table behind a library's face, _ENV or _G at `index`: pushes it, or pushes nothing and
/// returns false.
bool push_proxied_table(lua_State* L, int index);

// ---- ordered_iteration.cc
void open_order(lua_State* L, int globals);  // pairs, ipairs, next
void push_weak_table(lua_State* L);          // its keys are weak

// ---- object_text.cc
void open_text(lua_State* L, int globals);  // tostring, print
void open_format(lua_State* L, int string_library);
/// Pushes the text of the value at `index` as tostring gives it.
void push_text(lua_State* L, int index);
/// Pushes format(…) of the arguments from `first` to the top.
void push_formatted(lua_State* L, int first);
/// Objects that an attempt printed lose their numbers; what the load printed keeps them.
void forget_printed(lua_State* L);

// ---- raw_access.cc
void open_raw(lua_State* L, int globals);  // raw*, get/setmetatable

// ---- sort.cc
void open_sort(lua_State* L, int table_library);

// ---- vm/protected_calls.cc
void open_protected_calls(lua_State* L, int globals);  // pcall, xpcall, load, dofile, …
void open_coroutines(lua_State* L, int coroutine);     // resume, wrap, close
/// Raises the private error once more where the script's pcall has caught it.
void resume_unwinding(lua_State* L);

// ---- io_os.cc
void open_io_os(lua_State* L, int globals);            // io, os, math.random, collectgarbage
void write_line(lua_State* L, std::string_view text);  // to the attempt's log
void write_text(lua_State* L, std::string_view text);  // what lacks its newline waits for it
void close_files(lua_State* L);                        // that the attempt left open
/// The attempt does what may leave programs or write anywhere; the host is told once.
void reach_outside(lua_State* L);
void flush_output(lua_State* L);  // at the end of an attempt
void reset_output(lua_State* L);  // io's files as at the start

// ---- vm/modules.cc
void open_modules(lua_State* L, int globals);  // require, package
/// Loads `text` as the chunk of `path` and pushes its function; an Error names file and line.
Status push_chunk(lua_State* L, const std::string& path, const std::string& text);
/// A name of a script: below the root, no "..".
bool is_inner_path(std::string_view path);
/// The stdlib's module ("flow.nn"), or null.
struct Module {
  std::string_view name, text;
};
const std::vector<Module>& stdlib_modules();
const Module* stdlib_module(std::string_view name);
/// Pushes flow.NAME's module where the stdlib has it.
bool push_stdlib_field(lua_State* L, std::string_view field);
/// Loads the bundle's files that no load required: a pipeline's body did, while it was built.
void load_remaining(lua_State* L, const Bundle& bundle);

// ---- vm/function_code.cc
/// Of the Lua function at `index`. Kept until forget_function_codes, so nothing may be collected
/// between: no Lua code runs there.
const FunctionCode& function_code(lua_State* L, int index);
void forget_function_codes(lua_State* L);
/// Whether the value at `index` is _ENV or _G.
bool is_globals(lua_State* L, int index);
/// What a library's name stands for: "load" reaches every global, "require" every module.
bool reaches_all_globals(std::string_view library_name);
bool reaches_modules(std::string_view library_name);
/// Names of the globals that the script defined, sorted.
std::vector<std::string> script_globals(lua_State* L);

// ---- context/context.cc
/// Ends the attempt with the private error.
[[noreturn]] void unwind(lua_State* L, Sandbox::Unwind why);

// ---- error_value.cc
/// Pushes the text of an error whose value, at `index`, is no string.
void push_error_text(lua_State* L, int index);

// ---- traceback.cc
std::string traceback_text(lua_State* L);
/// lua_pcall that keeps the traceback of an error, and makes its message text.
int call_traced(lua_State* L, int arguments, int results);
/// The message of the error at the top.
std::string error_text(lua_State* L, int status);

// ---- vm/vm.cc
/// Canonical code of every task that has none yet.
void fill_codes(lua_State* L);

}  // namespace flow::lua
