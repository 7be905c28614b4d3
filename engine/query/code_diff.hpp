// The changed lines of a function or a command, as a short unified diff.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.hpp"

namespace flow {

/// Some lines of a file, or all lines of a text.
struct SourceLines {
  size_t first = 1;  // number of the first line in its file
  std::vector<std::string> lines;
};

/// The lines that `source` names in the bundle's files: "features.lua:12-20". Empty if there are
/// none.
SourceLines source_lines(const Bundle& bundle, const std::string& source);

SourceLines lines_of(std::string_view text);

/// "@@ -12 +12 @@", the numbers of the first line, then lines that begin with " ", "-" or "+"; one
/// line of context around changes. At most 30 lines of at most 160 bytes; empty if the lines are
/// equal or too many.
std::vector<std::string> line_diff(const SourceLines& before, const SourceLines& now);

}  // namespace flow
