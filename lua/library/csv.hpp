// Comma-separated values (RFC 4180) into typed columns.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow::lua {

enum class ColumnType : uint8_t { integer, number, text };
const char* column_type_name(ColumnType type);  // "i64", "f64", "string"

struct CsvOptions {
  bool header = true;
  char delimiter = ',';
  std::map<std::string, ColumnType> types;  // by name or number; other columns are inferred
};

/// One of the three vectors is used, according to `type`.
struct CsvColumn {
  std::string name;
  ColumnType type = ColumnType::text;
  std::vector<int64_t> integers;
  std::vector<double> numbers;  // an empty field is NaN
  std::vector<std::string> texts;
  // In `numbers`: the first row whose field is an integer that f32 would round.
  std::optional<size_t> row_beyond_f32;
};

struct CsvTable {
  std::vector<CsvColumn> columns;
  size_t rows = 0;
  bool named = false;  // the names come from a header; otherwise they are "1", "2", …
};

/// An Error names row, column and line of the text.
Result<CsvTable> parse_csv(std::string_view text, const CsvOptions& options);

}  // namespace flow::lua
