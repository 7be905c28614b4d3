// CSV: the first byte selects the options. Every column is as long as the table, and the written
// text of the table is read as the same table.
#include "lua/library/csv.hpp"

#include "lua/state/arguments.hpp"

namespace {

using namespace flow::lua;

constexpr size_t kUnpackedMax = 1 << 20;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string written(const CsvTable& table, char delimiter) {
  std::string out;
  auto line = [&](auto cell) {
    for (size_t i = 0; i < table.columns.size(); i++) {
      if (i > 0) out += delimiter;
      out += quoted(cell(table.columns[i]));
    }
    out += '\n';
  };
  if (table.named) line([](const CsvColumn& column) { return column.name; });
  for (size_t row = 0; row < table.rows; row++)
    line([row](const CsvColumn& column) { return column.texts[row]; });
  return out;
}

void check_lengths(const CsvTable& table) {
  for (const CsvColumn& column : table.columns) {
    FLOW_CHECK(column.integers.size() == (column.type == ColumnType::integer ? table.rows : 0));
    FLOW_CHECK(column.numbers.size() == (column.type == ColumnType::number ? table.rows : 0));
    FLOW_CHECK(column.texts.size() == (column.type == ColumnType::text ? table.rows : 0));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  uint8_t choice = data[0];
  std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  if (text.starts_with("\x1f\x8b")) {
    auto unpacked = gunzip(text, kUnpackedMax);
    if (!unpacked.ok()) return 0;
    FLOW_CHECK(unpacked->size() <= kUnpackedMax);
    text = std::move(*unpacked);
  } else {
    FLOW_CHECK(*gunzip(gzip(text), kUnpackedMax) == text);
  }
  CsvOptions options;
  options.header = (choice & 1) != 0;
  options.delimiter = ",;\t|"[choice >> 1 & 3];
  if ((choice & 8) != 0) options.types["1"] = static_cast<ColumnType>((choice >> 4 & 3) % 3);
  auto typed = parse_csv(text, options);
  if (typed.ok()) check_lengths(*typed);

  CsvOptions as_text = options;
  as_text.types.clear();
  auto names = parse_csv(text, as_text);
  if (!names.ok()) return 0;
  for (size_t i = 0; i < names->columns.size(); i++)
    as_text.types[std::to_string(i + 1)] = as_text.types[names->columns[i].name] = ColumnType::text;
  auto table = parse_csv(text, as_text);
  FLOW_CHECK(table.ok());
  check_lengths(*table);
  auto back = parse_csv(written(*table, options.delimiter), as_text);
  FLOW_CHECK(back.ok() && back->rows == table->rows && back->named == table->named);
  for (size_t i = 0; i < table->columns.size(); i++) {
    FLOW_CHECK(back->columns[i].name == table->columns[i].name);
    FLOW_CHECK(back->columns[i].texts == table->columns[i].texts);
  }
  return 0;
}
