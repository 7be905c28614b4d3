// The candidates for the next word of a command line, for the completion of shells.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

/// The word after `flow` with which the scripts of `flow completion` ask for candidates.
constexpr const char* kCompleteWord = "__complete";
/// Prints what may stand in the place of the last of the words after `flow`. Returns the exit code.
int print_candidates(const CLI::App& app, VerbContext& context, std::vector<std::string> words);

}  // namespace flow::cli
