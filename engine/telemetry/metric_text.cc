#include "engine/telemetry/metric_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace flow {

namespace {

constexpr double kUsPerSecond = 1e6;

void add_escaped(std::string_view text, std::string& out) {
  for (char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

void DurationHistogram::add(int64_t us) {
  us = std::max<int64_t>(us, 0);
  const auto* limit = std::find_if(kLimits.begin(), kLimits.end(),
                                   [us](const Limit& each) { return us <= each.us; });
  counts_[static_cast<size_t>(limit - kLimits.begin())]++;
  sum_us_ += static_cast<uint64_t>(us);
}

void MetricText::begin(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void MetricText::add_sample(std::string_view suffix, Labels labels, std::string_view value) {
  text_ += name_;
  text_ += suffix;
  char before = '{';
  for (const auto& [label, text] : labels) {
    text_ += before;
    text_ += label;
    text_ += "=\"";
    add_escaped(text, text_);
    text_ += '"';
    before = ',';
  }
  if (labels.size() > 0) text_ += '}';
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

void MetricText::add(Labels labels, uint64_t value) {
  add_sample("", labels, std::to_string(value));
}

void MetricText::add(Labels labels, double value) { add_sample("", labels, number_text(value)); }

void MetricText::histogram(std::string_view name, std::string_view help,
                           const DurationHistogram& durations) {
  begin(name, "histogram", help);
  uint64_t cumulative = 0;
  const auto& limits = DurationHistogram::kLimits;
  for (size_t i = 0; i <= limits.size(); i++) {
    cumulative += durations.bucket(i);
    const char* limit = i < limits.size() ? limits[i].seconds : "+Inf";
    add_sample("_bucket", {{"le", limit}}, std::to_string(cumulative));
  }
  add_sample("_sum", {}, number_text(static_cast<double>(durations.sum_us()) / kUsPerSecond));
  add_sample("_count", {}, std::to_string(cumulative));
}

}  // namespace flow
