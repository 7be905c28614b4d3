// Shared by the files of the sandbox: the state of one script state in addition to Lua's own
// memory.
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
extern const char kGlobalsKey;     // table of every global: libraries' and the script's
extern const char kScriptKey;      // _ENV of every chunk: empty, reads kGlobalsKey, checks writes
extern const char kProxyKey;       // _G: reads and defines globals, nil if undefined
extern const char kLoadedKey;      // package.loaded
extern const char kNumbersKey;     // weak: object to its number in print
extern const char kOrdersKey;      // weak: table to the keys of its traversal by next
extern const char kProxiedKey;     // in a metatable: the table behind a library's proxy
extern const char kLibraryKey;     // in a metatable: the library's name
extern const char kExtensionsKey;  // library's name to its table, for libraries with new fields
extern const char kUnwindKey;      // the private error that ends an attempt, as a light userdata

struct RestorePool;

/// Properties of a Lua function, read from its instructions.
struct FunctionCode {
  Digest digest;                     // of the code alone
  std::string file;                  // where it was defined
  std::string source;                // with its lines: "features.lua:12-20"
  std::vector<std::string> globals;  // names it reads, sorted
  bool all_globals = false;          // it uses _ENV or _G as a value, or loads text
  bool modules = false;              // it calls require
};

/// State of a script in addition to Lua's memory. Reset before every attempt.
struct Sandbox {
  enum class Unwind : uint8_t { none, waiting, stopped };

  bool silent = false;       // output of the load is dropped: it was shown when the graph was built
  bool opens_files = false;  // this attempt opened files with io
  bool reached_outside =
      false;  // it called a function that may start programs or write to the process's streams
  bool frozen = false;  // libraries and globals are read-only
  Unwind unwind = Unwind::none;
  bool waited = false;  // this attempt called ctx:wait
  std::string signal, wait_name;
  int64_t wait_timeout_ms = -1;
  std::string line;  // text of io.write whose line has not ended

  uint64_t random[4] = {};
  bool random_seeded = false;       // false: `seed` is expanded at the first use
  const char* no_random = nullptr;  // why math.random is an error now; null: it is not
  uint64_t seed = 0;
  lua_Integer printed = 0;  // objects numbered so far
  lua_Integer printed_by_load = 0;

  // The table that `next` traverses, while it is in 1..n.
  const void* walk_table = nullptr;
  lua_Integer walk_at = 0;

  // Modules.
  std::function<std::optional<std::string>(const std::string&)> read_source;
  std::vector<std::pair<std::string, std::string>>* files = nullptr;  // of the bundle
  std::vector<std::pair<std::string, ScriptLocation>>
      requiring;  // modules that are loading and where they are required, innermost last
  std::string source_folder;  // "": only `files` exist
  std::string traceback;      // of the last error

  std::unordered_map<const void*, std::string>
      library_names;                                // functions, tables and their proxies
  std::unordered_set<std::string> library_globals;  // names that the script cannot replace
  std::unordered_set<std::string> declared;         // globals that the script has set

  // Fields that the load added to libraries: (library, field), sorted; their tables are at
  // kExtensionsKey.
  std::set<std::pair<std::string, std::string>> library_extensions;
  std::unordered_map<const void*, FunctionCode> function_codes;
  std::shared_ptr<RestorePool> restore_pool;

  // Of the current attempt: uses of each name, and the step that it is in ("outer/").
  std::unordered_map<std::string, uint32_t> step_names, wait_names;
  std::string step_path;
};

Sandbox& sandbox(lua_State* L);

/// Registers every table and function reachable by names from the library value at `index`:
/// "string.format".
void name_library(lua_State* L, int index, const std::string& name);
/// Replaces the table at the top by a proxy that is read-only after the load.
void push_read_only_proxy(lua_State* L, const std::string& name);
/// For the table at the top, a library that is written in Lua: a missing name, such as that of one
/// of PyTorch's classes (`flow.nn.Linear`), is an error with the right name.
void reject_missing_names(lua_State* L, const std::string& library);
/// What to write in place of `field`, which `library` does not have: ": here it is `linear`",
/// " (did you mean `text`?)" or "". `names`: those that it has.
std::string missing_name_hint(std::string_view library, std::string_view field,
                              const std::vector<std::string>& names);
/// The same for a global of another library, such as `torch`; "" for all others.
std::string foreign_global_hint(std::string_view name);
/// Pushes the table behind a library's proxy, _ENV or _G at `index`; otherwise pushes nothing and
/// returns false.
bool push_proxied_table(lua_State* L, int index);

// ---- ordered_iteration.cc
void open_order(lua_State* L, int globals);  // pairs, ipairs, next
void push_weak_table(lua_State* L);          // a table with weak keys

// ---- object_text.cc
void open_text(lua_State* L, int globals);  // tostring, print
void open_format(lua_State* L, int string_library);
/// Pushes the text of the value at `index` as tostring returns it.
void push_text(lua_State* L, int index);
/// Pushes format(…) of the arguments from `first` to the top.
void push_formatted(lua_State* L, int first);
/// Objects that an attempt printed lose their numbers; those that the load printed keep them.
void forget_printed(lua_State* L);

// ---- raw_access.cc
void open_raw(lua_State* L, int globals);  // raw*, get/setmetatable

// ---- sort.cc
void open_sort(lua_State* L, int table_library);

// ---- vm/protected_calls.cc
void open_protected_calls(lua_State* L, int globals);  // pcall, xpcall, load, dofile, …
void open_coroutines(lua_State* L, int coroutine);     // resume, wrap, close
/// Raises the private error again after the script's pcall has caught it.
void resume_unwinding(lua_State* L);

// ---- io_os.cc
void open_io_os(lua_State* L, int globals);            // io, os, math.random, collectgarbage
void write_line(lua_State* L, std::string_view text);  // to the attempt's log
void write_text(lua_State* L, std::string_view text);  // text without a newline is buffered
void close_files(lua_State* L);                        // files that the attempt left open
/// Reports to the host, once per attempt, that it may start programs or write anywhere.
void reach_outside(lua_State* L);
void flush_output(lua_State* L);  // at the end of an attempt
void reset_output(lua_State* L);  // restores io's default files

// ---- vm/modules.cc
void open_modules(lua_State* L, int globals);  // require, package
/// Loads `text` as the chunk of `path` and pushes its function; an Error names file and line.
Status push_chunk(lua_State* L, const std::string& path, const std::string& text);
/// Whether the path of a script is below the root and has no "..".
bool is_inner_path(std::string_view path);
/// The stdlib's module ("flow.nn"), or null.
struct Module {
  std::string_view name, text;
};
const std::vector<Module>& stdlib_modules();
const Module* stdlib_module(std::string_view name);
/// Pushes flow.NAME's module if the stdlib has it.
bool push_stdlib_field(lua_State* L, std::string_view field);
/// Loads the bundle's files that a pipeline's body required while it was built.
void load_remaining(lua_State* L, const Bundle& bundle);

// ---- vm/function_code.cc
/// Of the Lua function at `index`. Cached until forget_function_codes(); no Lua code and no
/// collection may run in between.
const FunctionCode& function_code(lua_State* L, int index);
void forget_function_codes(lua_State* L);
/// Whether the value at `index` is _ENV or _G.
bool is_globals(lua_State* L, int index);
/// Whether the library function makes every global reachable ("load"), or every module ("require").
bool reaches_all_globals(std::string_view library_name);
bool reaches_modules(std::string_view library_name);
/// Names of the globals that the script defined, sorted.
std::vector<std::string> script_globals(lua_State* L);

// ---- context/context.cc
/// Ends the attempt with the private error.
[[noreturn]] void unwind(lua_State* L, Sandbox::Unwind why);

// ---- error_value.cc
/// Pushes the text of an error whose value, at `index`, is not a string.
void push_error_text(lua_State* L, int index);

// ---- traceback.cc
std::string traceback_text(lua_State* L);
/// lua_pcall that stores the traceback of an error, and converts its message to text.
int call_traced(lua_State* L, int arguments, int results);
/// The message of the error at the top.
std::string error_text(lua_State* L, int status);

// ---- vm/vm.cc
/// Computes the canonical code of every task that has none yet.
void fill_codes(lua_State* L);

}  // namespace flow::lua
