// Shared by the libraries under flow: reading arguments, and files as tasks may read them.
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
/// Raises outside a task: what reads or writes files is for tasks, once their start is durable.
void require_task(lua_State* L, const char* function);
/// Names of the options table at `index` (or nil), each of which must be one of `known`.
void check_options(lua_State* L, int index, const char* function,
                   const std::vector<std::string>& known);
std::string_view check_text_argument(lua_State* L, int index, const char* function);
void push_text_value(lua_State* L, std::string_view text);
/// The list at `index`, or an error that names the function.
void check_list(lua_State* L, int index, const char* function);
/// Fills the library table flow.NAME.
void open_library(lua_State* L, int flow_table, const char* name, const luaL_Reg* functions);

// ---- library/files.cc
/// The content of a file; of a gzip file (by its first bytes) what is in it.
Result<std::string> read_input(const std::string& path);
Result<std::string> gunzip(std::string_view compressed, uint64_t size_max);
std::string gzip(std::string_view content);

// ---- library/fs.cc
/// Writes a file whole, or raises. `mode` as fopen's.
void write_output(lua_State* L, const std::string& path, const char* function, const char* mode,
                  std::string_view content);

// ---- one file a library
extern const luaL_Reg kRowsFunctions[];   // library/rows.cc: flow.data.csv
extern const luaL_Reg kArrayFunctions[];  // library/array_files.cc: flow.data.idx, npy, raw, …
extern const luaL_Reg kSafetensorsFunctions[];
extern const luaL_Reg kLoaderFunctions[];  // library/loader.cc: flow.data.loader, windows
/// No thread reads ahead any more: an attempt has ended.
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
