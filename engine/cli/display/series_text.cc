#include "engine/cli/display/series_text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace flow::cli {

namespace {

/// "" for a finite number.
std::string special_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return "";
}

/// The mean of the finite values of each of `columns` equal parts; NaN for a part without any.
std::vector<double> means(const std::vector<MetricPoint>& points, size_t columns) {
  std::vector<double> out;
  for (size_t column = 0; column < columns; column++) {
    size_t from = column * points.size() / columns, to = (column + 1) * points.size() / columns;
    double sum = 0, count = 0;
    for (size_t i = from; i < to; i++) {
      if (!std::isfinite(points[i].value)) continue;
      count++;
      sum += (points[i].value - sum) / count;  // the mean so far: the sum could overflow
    }
    out.push_back(count > 0 ? sum : std::numeric_limits<double>::quiet_NaN());
  }
  return out;
}

}  // namespace

std::string short_number(double value) {
  std::string special = special_number(value);
  if (!special.empty()) return special;
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string exact_number(double value) {
  std::string special = special_number(value);
  return special.empty() ? to_json(Value(value)) : special;
}

std::string json_number(double value) { return to_json(Value(value)); }

std::string sparkline(const std::vector<MetricPoint>& points, size_t columns_max) {
  constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr double kHighest = std::size(kBlocks) - 1;
  std::vector<double> values = means(points, std::min(columns_max, points.size()));
  double low = std::numeric_limits<double>::quiet_NaN(), high = low;
  for (double value : values) {
    low = std::fmin(low, value);
    high = std::fmax(high, value);
  }
  double range = high / 2 - low / 2;  // halves: the range itself could overflow
  std::string text;
  for (double value : values) {
    if (std::isnan(value)) {
      text += ' ';
      continue;
    }
    double height = range > 0 ? (value / 2 - low / 2) / range : 0;
    text += kBlocks[static_cast<size_t>(std::clamp(height, 0.0, 1.0) * kHighest + 0.5)];
  }
  return text;
}

bool has_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale = value;
    std::ranges::transform(locale, locale.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace flow::cli
