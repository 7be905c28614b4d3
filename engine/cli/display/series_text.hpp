// Series of metrics as text.
#pragma once
#include <string>

#include "flow/flow.hpp"

namespace flow::cli {

/// Four significant digits: "0.1235"; "NaN", "Infinity".
std::string short_number(double value);
/// All digits: "0.1234567890123"; "NaN", "Infinity".
std::string exact_number(double value);
/// As in JSON: NaN and infinities are strings.
std::string json_number(double value);
/// The curve in at most `columns_max` block characters; a column without a finite value is blank.
std::string sparkline(const std::vector<MetricPoint>& points, size_t columns_max);
/// Whether the environment's locale (LC_ALL, LC_CTYPE, LANG) has UTF-8.
bool has_utf8_locale();
/// A field of CSV, in quotes if it needs them.
std::string csv_field(const std::string& text);

}  // namespace flow::cli
