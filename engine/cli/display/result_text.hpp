// The result of a run for people.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "flow/flow.hpp"

namespace flow::cli {

constexpr size_t kResultColumnsMax = 160;  // of a result on one line
constexpr size_t kResultLinesMax = 10;

/// As JSON, with a tensor as "<f32 64x64>" and a file as "<name, size>"; one line, cut if it is
/// long.
std::string outline_text(const Value& value, size_t columns_max);

struct ResultText {
  std::vector<std::string> lines;
  bool is_cut = false;
};
/// "result: {…}" if that fits; else one line per field, at most kResultLinesMax. A long list is
/// "[120 items: first, second, …]". `columns_max` is the width of a line.
ResultText result_text(const Value& result, size_t columns_max);

}  // namespace flow::cli
