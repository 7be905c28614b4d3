// The types that CSV columns get, against an independent reading of each field.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>

#include "lua/library/csv.hpp"

using namespace flow;
using namespace flow::lua;

namespace {

__extension__ typedef unsigned __int128 Wide;

CsvColumn column_of(const std::string& field) {
  CsvOptions options;
  options.header = false;
  auto table = parse_csv('"' + field + "\"\n", options);
  REQUIRE(table.ok());
  REQUIRE(table->columns.size() == 1);
  return table->columns[0];
}

/// A decimal number: [blanks] [+-] digits [. digits] [e [+-] digits] [blanks].
struct Decimal {
  bool is_negative = false, is_integer = true;
  std::string whole, mantissa;  // digits of `mantissa`, including those of the fraction
};

std::optional<Decimal> decimal_of(std::string text) {
  size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  if (first == std::string::npos) return std::nullopt;
  text = text.substr(first, last - first + 1);
  Decimal out;
  size_t at = 0;
  auto digits = [&] {
    size_t start = at;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') at++;
    return text.substr(start, at - start);
  };
  auto sign = [&] {
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) return text[at++] == '-';
    return false;
  };
  out.is_negative = sign();
  out.whole = out.mantissa = digits();
  if (at < text.size() && text[at] == '.') {
    at++;
    out.is_integer = false;
    out.mantissa += digits();
  }
  if (out.mantissa.empty()) return std::nullopt;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    at++;
    out.is_integer = false;
    (void)sign();
    if (digits().empty()) return std::nullopt;
  }
  return at == text.size() ? std::optional(out) : std::nullopt;
}

/// The expected column for this single field.
CsvColumn expected(const std::string& field) {
  CsvColumn out;
  out.texts = {field};
  auto decimal = decimal_of(field);
  if (!decimal || (decimal->whole.size() > 1 && decimal->whole[0] == '0')) return out;
  if (decimal->is_integer) {
    constexpr Wide kBeyond = static_cast<Wide>(1) << 65;
    Wide size = 0;
    for (char digit : decimal->whole)
      if (size < kBeyond) size = size * 10 + static_cast<unsigned>(digit - '0');
    Wide most = (static_cast<Wide>(1) << 63) - !decimal->is_negative;
    if (size > most) return out;
    out.type = ColumnType::integer;
    auto low = static_cast<uint64_t>(size);
    out.integers = {static_cast<int64_t>(decimal->is_negative ? 0 - low : low)};
    out.texts.clear();
    return out;
  }
  double number = std::strtod(field.c_str(), nullptr);
  bool is_zero = decimal->mantissa.find_first_not_of('0') == std::string::npos;
  if (std::isinf(number) || (number == 0 && !is_zero)) return out;
  out.type = ColumnType::number;
  out.numbers = {number};
  out.texts.clear();
  return out;
}

void check(const std::string& field) {
  INFO("the field is `" << field << "`");
  CsvColumn found = column_of(field), wanted = expected(field);
  CHECK(std::string(column_type_name(found.type)) == column_type_name(wanted.type));
  CHECK(found.integers == wanted.integers);
  CHECK(found.numbers == wanted.numbers);
  CHECK(found.texts == wanted.texts);
}

}  // namespace

TEST_CASE("a CSV field is a number if a number keeps its digits") {
  auto is = [](const char* type, const std::string& field) {
    INFO("the field is `" << field << "`");
    CHECK(std::string(column_type_name(column_of(field).type)) == type);
  };
  for (const char* field : {"00123",
                            "-007",
                            "+01",
                            "01.5",
                            "-00",
                            "00",
                            "1E400",
                            "-1e400",
                            "1e-400",
                            "9223372036854775808",
                            "-9223372036854775809",
                            "0x10",
                            "1_000",
                            "+",
                            "-",
                            "1e",
                            "++1",
                            "+-1",
                            "1 2",
                            ".",
                            "1,5",
                            "123456789012345678901234567890"})
    is("string", field);
  for (const char* field :
       {"0", "-0", "7", " 7", "7\t", "+5", "-5", "9223372036854775807", "-9223372036854775808"})
    is("i64", field);
  for (const char* field : {"1e5", "1E5", "0.5", "-0.5", ".5", "5.", "1.50", "0e0", "0.0e999",
                            "1e308", "5e-324", "nan", "NaN", "inf", "-inf"})
    is("f64", field);
}

TEST_CASE("a CSV column with one code is text as a whole") {
  auto table = parse_csv("code,n\n12,1\n007,2\n1.5,3\n", {});
  REQUIRE(table.ok());
  CHECK(table->columns[0].texts == std::vector<std::string>{"12", "007", "1.5"});
  CHECK(table->columns[1].integers == std::vector<int64_t>{1, 2, 3});
}

TEST_CASE("a CSV column with a given type is read as that type") {
  CsvOptions options;
  options.types = {{"a", ColumnType::integer}, {"b", ColumnType::number}, {"c", ColumnType::text}};
  auto table = parse_csv("a,b,c\n007,1e400,5\n", options);
  REQUIRE(table.ok());
  CHECK(table->columns[0].integers == std::vector<int64_t>{7});
  CHECK(table->columns[1].numbers == std::vector<double>{HUGE_VAL});
  CHECK(table->columns[2].texts == std::vector<std::string>{"5"});
}

TEST_CASE("random CSV fields have the type and the value of an independent reading") {
  std::mt19937_64 random(7);
  constexpr std::string_view kParts[] = {"0",   "00",  "1",    "7",    "93", "9223372036854775",
                                         "807", "808", "+",    "-",    ".",  "e",
                                         "E",   "e3",  "e-40", "e400", " ",  "x"};
  for (int i = 0; i < 20'000; i++) {
    std::string field;
    for (size_t n = 1 + random() % 5; n > 0; n--) field += kParts[random() % std::size(kParts)];
    check(field);
  }
}
