// Comma-separated values (RFC 4180) into typed columns.
#include "lua/library/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <set>

#include "flow/value.hpp"
#include "lua/state/exact.hpp"

namespace flow::lua {
namespace {

constexpr double kIntegerMaxF32 = 0x1p24;  // f32 represents every integer up to this

// The fields of all rows, one after the other; quoted fields with doubled quotes are stored
// separately.
struct CsvCells {
  std::vector<std::string_view> cells;
  std::vector<uint64_t> lines;  // line at which each row starts
  std::deque<std::string> unquoted;
  size_t width = 0;
};

class Splitter {
 public:
  Splitter(std::string_view text, char delimiter, CsvCells& out)
      : text_(text), delimiter_(delimiter), out_(out) {}

  Status run() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // byte order mark
    while (at_ < text_.size()) {
      if (is_blank_line()) continue;
      FLOW_TRY(row());
    }
    return {};
  }

 private:
  bool is_blank_line() {
    if (text_[at_] != '\n' && text_[at_] != '\r') return false;
    end_line();
    return true;
  }

  Status row() {
    out_.lines.push_back(line_);
    size_t before = out_.cells.size();
    bool more = true;
    while (more) {
      FLOW_TRY(at_ < text_.size() && text_[at_] == '"' ? quoted(out_.cells.size() - before)
                                                       : plain());
      more = at_ < text_.size() && text_[at_] == delimiter_;
      if (more) at_++;
    }
    end_line();
    size_t width = out_.cells.size() - before;
    if (out_.lines.size() == 1) out_.width = width;
    if (width != out_.width)
      return user_error(fmt::format("line {} has {} fields, the first row has {}",
                                    out_.lines.back(), width, out_.width));
    return {};
  }

  void end_line() {
    if (at_ < text_.size() && text_[at_] == '\r') at_++;
    if (at_ < text_.size() && text_[at_] == '\n') at_++;
    line_++;
  }

  bool at_end() const {  // of a field
    if (at_ >= text_.size()) return true;
    char c = text_[at_];
    return c == delimiter_ || c == '\n' || c == '\r';
  }

  Status plain() {
    size_t start = at_;
    while (!at_end()) at_++;
    out_.cells.push_back(text_.substr(start, at_ - start));
    return {};
  }

  Status quoted(size_t column) {
    size_t start = ++at_;
    uint64_t opened = line_;
    bool doubled = false;
    for (;;) {
      if (at_ >= text_.size())
        return user_error(fmt::format(
            "line {}, column {}: the quote that opens here is never closed", opened, column + 1));
      bool is_alone = at_ + 1 >= text_.size() || text_[at_ + 1] != '\n';
      bool ends_line = text_[at_] == '\n' || (text_[at_] == '\r' && is_alone);
      if (ends_line) line_++;
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') break;
        doubled = true;
        at_++;
      }
      at_++;
    }
    std::string_view content = text_.substr(start, at_ - start);
    at_++;
    if (!at_end())
      return user_error(
          fmt::format("line {}, column {}: after a closing quote comes `{}` or the end of "
                      "the line; a quote inside quotes is written twice",
                      line_, column + 1, delimiter_));
    if (doubled) content = undouble(content);
    out_.cells.push_back(content);
    return {};
  }

  std::string_view undouble(std::string_view content) {
    std::string text;
    for (size_t i = 0; i < content.size(); i++) {
      text += content[i];
      if (content[i] == '"') i++;
    }
    return out_.unquoted.emplace_back(std::move(text));
  }

  std::string_view text_;
  char delimiter_;
  CsvCells& out_;
  size_t at_ = 0;
  uint64_t line_ = 1;
};

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

enum class ParseOutcome : uint8_t { no, yes, beyond_range };

// A number beyond the range of a double becomes an infinity or 0.
template <typename Number>
ParseOutcome parse_number(std::string_view text, Number& out) {
  text = trim(text);
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (text.empty() || end != text.data() + text.size()) return ParseOutcome::no;
  if constexpr (std::is_floating_point_v<Number>) {
    if (error == std::errc::result_out_of_range) {
      out = std::strtod(std::string(text).c_str(), nullptr);
      return ParseOutcome::beyond_range;
    }
  }
  return error == std::errc() ? ParseOutcome::yes : ParseOutcome::no;
}

template <typename Number>
bool parse(std::string_view text, Number& out) {
  return parse_number(text, out) != ParseOutcome::no;
}

// 00123 and -007.5, but not 0 or 0.5: identifiers, which would lose their zeros as numbers.
bool has_leading_zeros(std::string_view text) {
  text = trim(text);
  if (text.starts_with('-')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

bool is_long_integer(std::string_view text) {
  text = trim(text);
  if (text.starts_with('-')) text.remove_prefix(1);
  constexpr size_t kDigits = 18;  // this many always fit into 64 bits
  int64_t integer;
  return text.size() > kDigits && text.find_first_not_of("0123456789") == std::string_view::npos &&
         !parse(text, integer);
}

std::string shown(std::string_view text) {
  constexpr size_t kShown = 40;
  return text.size() <= kShown ? std::string(text) : std::string(text.substr(0, kShown)) + "…";
}

class ColumnTypeInferrer {
 public:
  ColumnTypeInferrer(const CsvCells& fields, size_t first_row)
      : fields_(fields), first_row_(first_row) {}

  size_t rows() const { return fields_.lines.size() - first_row_; }

  // The narrowest type of all fields of the column. Empty fields make integers numbers. The type is
  // text if a number would lose digits: leading zeros, an integer beyond 64 bits, a number beyond
  // the range of a double, or an integer that a double would round, unless all are integers.
  ColumnType find(size_t column) const {
    bool integers = true, any = false, exact = true;
    for (size_t row = 0; row < rows(); row++) {
      std::string_view text = cell(row, column);
      if (text.empty()) {
        integers = false;
        continue;
      }
      any = true;
      if (has_leading_zeros(text)) return ColumnType::text;
      int64_t integer;
      double number;
      if (parse(text, integer)) {
        exact = exact && is_exact<double>(integer);
        continue;
      }
      integers = false;
      if (parse_number(text, number) != ParseOutcome::yes || is_long_integer(text))
        return ColumnType::text;
    }
    if (!any || (!integers && !exact)) return ColumnType::text;
    return integers ? ColumnType::integer : ColumnType::number;
  }

  Status fill(size_t column, CsvColumn& out) const {
    for (size_t row = 0; row < rows(); row++) {
      std::string_view text = cell(row, column);
      bool good = true;
      if (out.type == ColumnType::integer) {
        good = parse(text, out.integers.emplace_back());
      } else if (out.type == ColumnType::number) {
        double& number = out.numbers.emplace_back(NAN);
        good = text.empty() || parse(text, number);
        int64_t integer;
        bool may_round = !out.row_beyond_f32 && std::abs(number) > kIntegerMaxF32;
        bool is_rounded =
            may_round && (parse(text, integer) ? !is_exact<float>(integer) : is_long_integer(text));
        if (is_rounded) out.row_beyond_f32 = row;
      } else {
        out.texts.emplace_back(text);
      }
      if (!good)
        return user_error(
            fmt::format("row {}, column {}{} (line {}): `{}` is not {}", row + 1, column + 1,
                        out.name == std::to_string(column + 1) ? "" : " `" + out.name + "`",
                        fields_.lines[first_row_ + row], shown(text),
                        out.type == ColumnType::integer ? "an integer" : "a number"));
    }
    return {};
  }

 private:
  std::string_view cell(size_t row, size_t column) const {
    return fields_.cells[(first_row_ + row) * fields_.width + column];
  }

  const CsvCells& fields_;
  size_t first_row_;
};

Status check_types(const CsvOptions& options, const CsvTable& table) {
  std::vector<std::string> names;
  for (const CsvColumn& column : table.columns) names.push_back(column.name);
  for (const auto& [name, type] : options.types) {
    bool known = std::find(names.begin(), names.end(), name) != names.end();
    size_t number = 0;
    bool numbered = parse(name, number) && number >= 1 && number <= names.size();
    if (known || numbered) continue;
    std::string near = nearest_name(name, names);
    return user_error(fmt::format("column `{}` does not exist{}", name,
                                  near.empty()
                                      ? fmt::format(": the number of columns is {}", names.size())
                                      : " (did you mean `" + near + "`?)"));
  }
  return {};
}

}  // namespace

const char* column_type_name(ColumnType type) {
  return type == ColumnType::integer ? "i64" : type == ColumnType::number ? "f64" : "string";
}

Result<CsvTable> parse_csv(std::string_view text, const CsvOptions& options) {
  CsvCells fields;
  FLOW_TRY(Splitter(text, options.delimiter, fields).run());
  CsvTable table;
  table.named = options.header && !fields.lines.empty();
  ColumnTypeInferrer inferrer(fields, table.named ? 1 : 0);
  table.rows = inferrer.rows();
  table.columns.resize(fields.width);
  std::set<std::string_view> seen;
  for (size_t i = 0; i < fields.width; i++) {
    table.columns[i].name = table.named ? std::string(fields.cells[i]) : std::to_string(i + 1);
    if (table.named && !seen.insert(fields.cells[i]).second)
      return user_error(
          fmt::format("the header (line {}) names the column `{}` twice; for a file "
                      "without a header write header = false",
                      fields.lines[0], shown(fields.cells[i])));
  }
  FLOW_TRY(check_types(options, table));
  for (size_t i = 0; i < fields.width; i++) {
    CsvColumn& column = table.columns[i];
    auto given = options.types.find(column.name);
    if (given == options.types.end()) given = options.types.find(std::to_string(i + 1));
    column.type = given != options.types.end() ? given->second : inferrer.find(i);
    FLOW_TRY(inferrer.fill(i, column));
  }
  return table;
}

}  // namespace flow::lua
