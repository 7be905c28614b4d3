// flow.data.csv: rows as Lua sees them. Userdata, because one table per row would take a hundred
// times the memory.
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "kernels/shared/types.hpp"
#include "lua/library/csv.hpp"
#include "lua/state/arguments.hpp"
#include "lua/state/exact.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

const char kRowsKey = 0;

CsvTable* test_rows(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TUSERDATA || !lua_getmetatable(L, index)) return nullptr;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kRowsKey);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same ? static_cast<CsvTable*>(lua_touserdata(L, index)) : nullptr;
}

CsvTable& check_rows(lua_State* L, const char* function) {
  CsvTable* table = test_rows(L, 1);
  if (table == nullptr)
    raise(L, fmt::format("rows:{} is a method of what flow.data.csv returned, not of {}", function,
                         describe(L, 1)));
  return *table;
}

// A column by number or name.
size_t check_column(lua_State* L, int index, const CsvTable& table, const char* function) {
  if (lua_isinteger(L, index)) {
    lua_Integer number = lua_tointeger(L, index);
    if (number >= 1 && number <= static_cast<lua_Integer>(table.columns.size()))
      return static_cast<size_t>(number) - 1;
    raise(L, fmt::format("rows:{}: column {} does not exist: the number of columns is {}", function,
                         number, table.columns.size()));
  }
  if (lua_type(L, index) != LUA_TSTRING)
    raise(L, fmt::format("rows:{} takes a column's number or name, not {}", function,
                         describe(L, index)));
  std::string_view name = check_text_argument(L, index, function);
  std::vector<std::string> names;
  for (size_t i = 0; i < table.columns.size(); i++) {
    if (table.columns[i].name == name) return i;
    names.push_back(table.columns[i].name);
  }
  std::string near = nearest_name(name, names);
  raise(L, fmt::format("rows:{}: column `{}` does not exist{}", function, name,
                       near.empty() ? "" : " (did you mean `" + near + "`?)"));
}

kernels::View view_of(const CsvColumn& column) {
  bool integers = column.type == ColumnType::integer;
  const void* data = integers ? static_cast<const void*>(column.integers.data())
                              : static_cast<const void*>(column.numbers.data());
  auto size = static_cast<int64_t>(integers ? column.integers.size() : column.numbers.size());
  return kernels::dense(integers ? DType::i64 : DType::f64, kernels::Shape{size},
                        const_cast<void*>(data));
}

void reject_text(lua_State* L, const CsvColumn& column, const char* function) {
  raise(L, fmt::format(
               "rows:{}: column `{}` holds text, which tensors do not hold: rows:column(\"{}\") is "
               "its list of strings",
               function, column.name, column.name));
}

[[noreturn]] void reject_value(lua_State* L, const CsvColumn& column, size_t row,
                               const std::string& value, DType dtype, const char* advice,
                               const char* function) {
  raise(L, fmt::format("rows:{}: row {} of column `{}` {}, which {} does not hold: {}", function,
                       row + 1, column.name, value, dtype_name(dtype), advice));
}

void check_integers(lua_State* L, const CsvColumn& column, DType dtype, bool is_asked,
                    const char* function) {
  for (size_t row = 0; row < column.integers.size(); row++) {
    int64_t value = column.integers[row];
    bool holds = dtype == DType::i32                ? value == static_cast<int32_t>(value)
                 : dtype == DType::u8               ? value == static_cast<uint8_t>(value)
                 : dtype == DType::f32 && !is_asked ? is_exact<float>(value)
                                                    : true;
    if (!holds)
      reject_value(L, column, row, fmt::format("is {}", value), dtype,
                   kernels::is_float(dtype)
                       ? "name the type, \"i64\", \"f64\" or \"f32\", which rounds it"
                       : "take a wider type",
                   function);
  }
}

void check_numbers(lua_State* L, const CsvColumn& column, DType dtype, bool is_asked,
                   const char* function) {
  bool is_float = kernels::is_float(dtype);
  bool may_round = is_asked || dtype != DType::f32;
  double low = dtype == DType::i64 ? -0x1p63 : dtype == DType::i32 ? -0x1p31 : 0;
  double high = dtype == DType::i64 ? 0x1p63 : dtype == DType::i32 ? 0x1p31 : 256;
  for (size_t row = 0; row < column.numbers.size(); row++) {
    double value = column.numbers[row];
    bool holds =
        is_float ? may_round || !std::isfinite(value) || std::isfinite(static_cast<float>(value))
        : dtype == DType::boolean ? !std::isnan(value)
                                  : std::trunc(value) == value && value >= low && value < high;
    if (holds) continue;
    reject_value(
        L, column, row, std::isnan(value) ? "is empty or NaN" : fmt::format("is {}", value), dtype,
        is_float ? "name the type \"f64\"" : "read it as \"f64\", and convert with x:to(type)",
        function);
  }
  if (may_round || !column.row_beyond_f32) return;
  size_t row = *column.row_beyond_f32;
  reject_value(L, column, row, fmt::format("is {:.0f}", column.numbers[row]), dtype,
               "name the type, \"f64\" or \"f32\", which rounds it", function);
}

// Raises an error for values that a tensor of `dtype` cannot represent. `is_asked`: the script
// names the type; then a float may be rounded. Otherwise only a fraction may.
void check_holds(lua_State* L, const CsvColumn& column, DType dtype, bool is_asked,
                 const char* function) {
  if (column.type == ColumnType::integer) {
    check_integers(L, column, dtype, is_asked, function);
  } else {
    check_numbers(L, column, dtype, is_asked, function);
  }
}

// rows:tensor(), rows:tensor(a, b[, type]), rows:tensor({names…}[, type]): [rows, columns], f32.
int rows_tensor(lua_State* L) {
  CsvTable& table = check_rows(L, "tensor");
  std::vector<size_t> columns;
  int type_at = 3;
  if (lua_type(L, 2) == LUA_TTABLE) {
    for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 2)); i++) {
      lua_rawgeti(L, 2, i);
      columns.push_back(check_column(L, -1, table, "tensor"));
      lua_pop(L, 1);
    }
  } else if (lua_isnoneornil(L, 2)) {
    for (size_t i = 0; i < table.columns.size(); i++) columns.push_back(i);
  } else {
    size_t first = check_column(L, 2, table, "tensor");
    size_t last = lua_isnoneornil(L, 3) ? first : check_column(L, 3, table, "tensor");
    if (last < first)
      raise(L, fmt::format("rows:tensor({}, {}): the first column comes after the last", first + 1,
                           last + 1));
    for (size_t i = first; i <= last; i++) columns.push_back(i);
    type_at = 4;
  }
  bool is_asked = !lua_isnoneornil(L, type_at);
  DType dtype = is_asked ? check_dtype(L, type_at) : DType::f32;
  for (size_t column : columns) {
    if (table.columns[column].type == ColumnType::text)
      reject_text(L, table.columns[column], "tensor");
    check_holds(L, table.columns[column], dtype, is_asked, "tensor");
  }
  kernels::View out = new_tensor(
      L, dtype,
      kernels::Shape{static_cast<int64_t>(table.rows), static_cast<int64_t>(columns.size())});
  for (size_t i = 0; i < columns.size(); i++)
    copy_view(view_of(table.columns[columns[i]]), kernels::select(out, 1, static_cast<int64_t>(i)));
  return 1;
}

// rows:column(k[, type]): i64 or f64 like the column, or a list of strings.
int rows_column(lua_State* L) {
  CsvTable& table = check_rows(L, "column");
  const CsvColumn& column = table.columns[check_column(L, 2, table, "column")];
  if (column.type == ColumnType::text) {
    if (!lua_isnoneornil(L, 3)) reject_text(L, column, "column");
    lua_createtable(L, static_cast<int>(std::min<size_t>(column.texts.size(), 1u << 24)), 0);
    for (size_t i = 0; i < column.texts.size(); i++) {
      push_text_value(L, column.texts[i]);
      lua_rawseti(L, -2, static_cast<lua_Integer>(i) + 1);
    }
    return 1;
  }
  kernels::View view = view_of(column);
  DType dtype = lua_isnoneornil(L, 3) ? view.dtype : check_dtype(L, 3);
  check_holds(L, column, dtype, true, "column");
  copy_view(view, new_tensor(L, dtype, view.shape));
  return 1;
}

void push_cell(lua_State* L, const CsvColumn& column, size_t row) {
  if (column.type == ColumnType::integer) return lua_pushinteger(L, column.integers[row]);
  if (column.type == ColumnType::number) return lua_pushnumber(L, column.numbers[row]);
  push_text_value(L, column.texts[row]);
}

// rows[i]: a list, or with a header a table by name.
void push_row(lua_State* L, const CsvTable& table) {
  lua_Integer at = lua_tointeger(L, 2);
  if (at < 1 || at > static_cast<lua_Integer>(table.rows))
    raise(L, fmt::format("row {} is outside 1..{}", at, table.rows));
  lua_newtable(L);
  for (size_t i = 0; i < table.columns.size(); i++) {
    if (table.named) {
      push_text_value(L, table.columns[i].name);
    } else {
      lua_pushinteger(L, static_cast<lua_Integer>(i) + 1);
    }
    push_cell(L, table.columns[i], static_cast<size_t>(at) - 1);
    lua_rawset(L, -3);
  }
}

void push_column_texts(lua_State* L, const CsvTable& table, bool types) {
  lua_createtable(L, static_cast<int>(table.columns.size()), 0);
  for (size_t i = 0; i < table.columns.size(); i++) {
    push_text_value(L, types ? column_type_name(table.columns[i].type) : table.columns[i].name);
    lua_rawseti(L, -2, static_cast<lua_Integer>(i) + 1);
  }
}

int rows_index(lua_State* L) {
  CsvTable& table = check_rows(L, "…");
  if (lua_isinteger(L, 2)) {
    push_row(L, table);
    return 1;
  }
  std::string_view field = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  if (field == "names" || field == "types") {
    push_column_texts(L, table, field == "types");
  } else if (field == "tensor") {
    lua_pushcfunction(L, rows_tensor);
  } else if (field == "column") {
    lua_pushcfunction(L, rows_column);
  } else {
    raise(L, fmt::format("rows have no `{}`: they have rows[i], #rows, rows.names, rows.types, "
                         "rows:tensor(a, b) and rows:column(k)",
                         field.empty() ? describe(L, 2) : std::string(field)));
  }
  return 1;
}

int rows_length(lua_State* L) {
  lua_pushinteger(L, static_cast<lua_Integer>(check_rows(L, "…").rows));
  return 1;
}

int rows_text(lua_State* L) {
  CsvTable& table = check_rows(L, "…");
  push_text_value(L, fmt::format("{} rows of {} columns", table.rows, table.columns.size()));
  return 1;
}

int rows_collect(lua_State* L) {
  if (CsvTable* table = test_rows(L, 1)) table->~CsvTable();
  lua_pushnil(L);
  lua_setmetatable(L, 1);
  return 0;
}

void push_rows(lua_State* L, CsvTable table, size_t bytes) {
  new (lua_newuserdatauv(L, sizeof(CsvTable), 0)) CsvTable(std::move(table));
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kRowsKey) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_newtable(L);
    luaL_Reg methods[] = {{"__index", rows_index},
                          {"__len", rows_length},
                          {"__tostring", rows_text},
                          {"__gc", rows_collect},
                          {nullptr, nullptr}};
    luaL_setfuncs(L, methods, 0);
    lua_pushliteral(L, "rows");
    lua_setfield(L, -2, "__name");
    lua_pushboolean(L, false);
    lua_setfield(L, -2, "__metatable");
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &kRowsKey);
  }
  lua_setmetatable(L, -2);
  // The collector sees only the userdata: report the memory behind it.
  lua_gc(L, LUA_GCSTEP, static_cast<int>(std::min<size_t>(bytes >> 10, 1u << 20)));
}

ColumnType check_column_type(lua_State* L, const std::string& column) {
  std::string_view name = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
  if (name == "i64") return ColumnType::integer;
  if (name == "f64" || name == "f32") return ColumnType::number;
  if (name == "string") return ColumnType::text;
  raise(L, fmt::format(
               "flow.data.csv: the type of column `{}` is \"i64\", \"f64\" or \"string\", not {}",
               column, name.empty() ? describe(L, -1) : "\"" + std::string(name) + "\""));
}

CsvOptions read_options_of_csv(lua_State* L) {
  check_options(L, 2, "flow.data.csv", {"header", "delimiter", "columns"});
  CsvOptions options;
  if (lua_isnoneornil(L, 2)) return options;
  if (lua_getfield(L, 2, "header") != LUA_TNIL) {
    if (!lua_isboolean(L, -1)) raise(L, "flow.data.csv: the option `header` is true or false");
    options.header = lua_toboolean(L, -1);
  }
  if (lua_getfield(L, 2, "delimiter") != LUA_TNIL) {
    std::string_view delimiter = check_text_argument(L, -1, "the option `delimiter`");
    if (delimiter.size() != 1 || delimiter == "\"" || delimiter == "\n" || delimiter == "\r")
      raise(L, "flow.data.csv: the option `delimiter` is one character, such as \";\" or \"\\t\"");
    options.delimiter = delimiter[0];
  }
  if (lua_getfield(L, 2, "columns") != LUA_TNIL) {
    if (lua_type(L, -1) != LUA_TTABLE)
      raise(L,
            "flow.data.csv: the option `columns` is a table of types by column: { age = \"i64\" }");
    lua_pushnil(L);
    while (lua_next(L, -2)) {
      lua_pushvalue(L, -2);
      std::string column = lua_tostring(L, -1) ? lua_tostring(L, -1) : "";
      lua_pop(L, 1);
      options.types[column] = check_column_type(L, column);
      lua_pop(L, 1);
    }
  }
  lua_settop(L, 2);
  return options;
}

// flow.data.csv(path, { header = true, delimiter = ",", columns = { name = type } })
int read_csv(lua_State* L) {
  std::string path = check_path(L, 1, "flow.data.csv");
  require_task(L, "flow.data.csv");
  CsvOptions options = read_options_of_csv(L);
  auto text = read_input(path);
  if (!text.ok()) raise(L, "flow.data.csv: " + text.error().message);
  auto table = parse_csv(*text, options);
  if (!table.ok()) raise(L, fmt::format("flow.data.csv: {}: {}", path, table.error().message));
  size_t bytes = text->size();
  text->clear();
  push_rows(L, std::move(*table), bytes);
  return 1;
}

}  // namespace

const luaL_Reg kRowsFunctions[] = {{"csv", read_csv}, {nullptr, nullptr}};

}  // namespace flow::lua
