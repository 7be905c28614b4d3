// Bytes and durations: number, unit, and errors that show the right form. Times in UTC.
#include "engine/base/size_units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>

namespace flow {
namespace {

constexpr double kBytesMax = 0x1p62;
constexpr double kMicrosecondsMax = 100.0 * 365 * 86400 * 1e6;  // a hundred years

struct SizeUnit {
  std::string_view name;
  double factor;
};

constexpr SizeUnit kByteUnits[] = {
    {"", 1},       {"b", 1},        {"k", 0x1p10},   {"m", 0x1p20},   {"g", 0x1p30},
    {"t", 0x1p40}, {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40},
    {"kb", 1e3},   {"mb", 1e6},     {"gb", 1e9},     {"tb", 1e12}};
constexpr SizeUnit kTimeUnits[] = {{"us", 1},   {"ms", 1e3},   {"s", 1e6},
                                   {"m", 60e6}, {"h", 3600e6}, {"d", 86400e6}};

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Removes a number such as "1.5" from the front of `text`: digits with at most one point, no sign,
// no exponent.
bool take_number(std::string_view& text, double& number) {
  size_t end = 0;
  while (end < text.size() && (is_digit(text[end]) || text[end] == '.')) end++;
  if (end == 0 || !is_digit(text[0])) return false;
  auto [stop, code] =
      std::from_chars(text.data(), text.data() + end, number, std::chars_format::fixed);
  if (code != std::errc() || stop != text.data() + end) return false;
  text.remove_prefix(end);
  return true;
}

// Removes a word from the front and returns it in lower case.
std::string take_word(std::string_view& text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::string word;
  while (!text.empty() && std::isalpha(static_cast<unsigned char>(text.front()))) {
    word.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(text.front()))));
    text.remove_prefix(1);
  }
  return word;
}

template <size_t n>
const SizeUnit* find_unit(const SizeUnit (&units)[n], std::string_view name) {
  auto found = std::find_if(units, units + n, [&](const SizeUnit& u) { return u.name == name; });
  return found == units + n ? nullptr : found;
}

Result<double> microseconds_of(std::string_view text) {
  auto wrong = [&](std::string_view why) {
    return user_error(
        fmt::format("`{}` is not a duration: {}; write a number and a unit of us, ms, s, m, h, d: "
                    "10m, 1.5s, 1h30m",
                    text, why));
  };
  std::string_view rest = trim(text);
  if (rest.empty()) return wrong("it is empty");
  double total = 0, previous = HUGE_VAL;
  while (!rest.empty()) {
    double number = 0;
    if (rest.front() == '-') return wrong("it is negative");
    if (!take_number(rest, number)) return wrong("a number is missing");
    std::string word = take_word(rest);
    if (word.empty() && number == 0 && total == 0 && rest.empty()) return 0.0;
    if (word.empty()) return wrong("the unit is missing");
    const SizeUnit* unit = find_unit(kTimeUnits, word);
    if (!unit) return wrong(fmt::format("`{}` is not a unit", word));
    if (unit->factor >= previous) return wrong("its units do not go from large to small");
    previous = unit->factor;
    total += number * unit->factor;
    rest = trim(rest);
  }
  if (total > kMicrosecondsMax) return wrong("it is longer than a hundred years");
  return total;
}

}  // namespace

Result<int64_t> parse_bytes(std::string_view text) {
  auto wrong = [&](std::string_view why) {
    return user_error(fmt::format(
        "`{}` is not a size: {}; write a number and a unit of K, M, G, T: 512M, 1.5G, 2GiB", text,
        why));
  };
  std::string_view rest = trim(text);
  double number = 0;
  if (rest.empty()) return wrong("it is empty");
  if (rest.front() == '-') return wrong("it is negative");
  if (!take_number(rest, number)) return wrong("it does not start with a number");
  std::string word = take_word(rest);
  const SizeUnit* unit = find_unit(kByteUnits, word);
  if (!unit) return wrong(fmt::format("`{}` is not a unit", word));
  if (!rest.empty()) return wrong(fmt::format("`{}` follows the unit", rest));
  double bytes = number * unit->factor;
  if (bytes > kBytesMax) return wrong("it is too large");
  return static_cast<int64_t>(std::llround(bytes));
}

Result<int64_t> parse_duration_us(std::string_view text) {
  auto total = microseconds_of(text);
  if (!total.ok()) return total.error();
  // 1.1m is 66000000.000000007 µs: a floating-point error must not add a microsecond.
  return static_cast<int64_t>(std::ceil(std::round(*total * 1e3) / 1e3));
}

Result<int64_t> parse_duration_ms(std::string_view text) {
  auto total = parse_duration_us(text);
  if (!total.ok()) return total.error();
  return *total / 1000 + (*total % 1000 != 0);
}

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto amount = static_cast<double>(bytes);
  size_t unit = 0;
  for (; amount >= 1023.95 && unit + 1 < std::size(kNames); unit++) amount /= 1024;
  if (unit == 0) return fmt::format("{} B", bytes);
  std::string text = fmt::format("{:.1f}", amount);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text + " " + kNames[unit];
}

std::string format_duration(int64_t time_ms) {
  if (time_ms < 0) return "-" + format_duration(time_ms == INT64_MIN ? INT64_MAX : -time_ms);
  if (time_ms < 1000) return fmt::format("{}ms", time_ms);
  if (time_ms < 60'000) {
    std::string text = fmt::format("{}.{:02}", time_ms / 1000, time_ms % 1000 / 10);
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
    return text + "s";
  }
  int64_t seconds = time_ms / 1000;
  auto two = [](int64_t large, const char* large_unit, int64_t small, const char* small_unit) {
    if (small == 0) return fmt::format("{}{}", large, large_unit);
    return fmt::format("{}{} {}{}", large, large_unit, small, small_unit);
  };
  if (seconds < 3600) return two(seconds / 60, "m", seconds % 60, "s");
  if (seconds < 86400) return two(seconds / 3600, "h", seconds % 3600 / 60, "m");
  return two(seconds / 86400, "d", seconds % 86400 / 3600, "h");
}

std::string format_time(int64_t time_ms) {
  using namespace std::chrono;
  sys_time<milliseconds> at{milliseconds(time_ms)};
  sys_days day = floor<days>(at);
  year_month_day date{day};
  hh_mm_ss time{at - day};
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", int{date.year()},
                     unsigned{date.month()}, unsigned{date.day()}, time.hours().count(),
                     time.minutes().count(), time.seconds().count(), time.subseconds().count());
}

}  // namespace flow
