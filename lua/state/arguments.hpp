// Shared by the libraries under flow: reading arguments, and files in tasks.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lua/state/vm_context.hpp"

namespace flow::lua {

// ---- library/data.cc
/// A path at `index`. Raises for a handle or a file that has no path yet.
std::string check_path(lua_State* L, int index, const char* function);
/// Raises outside a task: files are read and written by tasks only, once their start is durable.
void require_task(lua_State* L, const char* function);
/// Checks that the names in the options table at `index` (or nil) are all in `known`.
void check_options(lua_State* L, int index, const char* function,
                   const std::vector<std::string>& known);
std::string_view check_text_argument(lua_State* L, int index, const char* function);
void push_text_value(lua_State* L, std::string_view text);
/// Checks that a list is at `index`; the error names the function.
void check_list(lua_State* L, int index, const char* function);
/// Fills the library table flow.NAME.
void open_library(lua_State* L, int flow_table, const char* name, const luaL_Reg* functions);

// ---- library/files.cc
/// The content of a file, decompressed if its first bytes are gzip's.
Result<std::string> read_input(const std::string& path);
Result<std::string> gunzip(std::string_view compressed, uint64_t size_max);
std::string gzip(std::string_view content);

// ---- library/fs.cc
/// Writes a whole file, or raises. `mode` as in fopen.
void write_output(lua_State* L, const std::string& path, const char* function, const char* mode,
                  std::string_view content);

// ---- one file a library
extern const luaL_Reg kRowsFunctions[];   // library/rows.cc: flow.data.csv
extern const luaL_Reg kArrayFunctions[];  // library/array_files.cc: flow.data.idx, npy, raw, …
extern const luaL_Reg kSafetensorsFunctions[];
extern const luaL_Reg kLoaderFunctions[];  // library/loader.cc: flow.data.loader, windows
/// Stops all prefetch threads, at the end of an attempt.
void end_loaders();
extern const luaL_Reg kTextFunctions[];
extern const luaL_Reg kTableFunctions[];
extern const luaL_Reg kJsonFunctions[];
extern const luaL_Reg kFsFunctions[];
extern const luaL_Reg kImageFunctions[];
void open_operations(lua_State* L, int flow_table);  // library/operations.cc: flow.operations
int read_json_lines(lua_State* L);                   // library/json.cc: flow.data.jsonl
int write_json_lines(lua_State* L);                  // flow.data.write_jsonl

}  // namespace flow::lua
