// The manual pages flow(1) and flow-VERB(1), in the man macros of roff. Options come from the
// parsers themselves, so a page never lacks one; descriptions, files and variables from
// manual_texts.cc.
#pragma once
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

/// The texts of a verb's page that its help lacks. `commands` are examples, each with its purpose.
struct VerbText {
  const char* verb;
  std::string description;  // paragraphs, separated by an empty line
  std::vector<std::pair<std::string, std::string>> commands;
  std::vector<std::string> related;  // verbs
};

/// A term, and what it means.
using TermTexts = std::vector<std::pair<std::string, std::string>>;

const std::vector<VerbText>& verb_texts();
/// The texts of the verb; empty if it has none.
const VerbText& verb_text(const std::string& verb);
const std::string& program_description();
const TermTexts& exit_code_texts();
const TermTexts& variable_texts();
/// The files of a verb; "" for all.
TermTexts file_texts(const std::string& verb);

/// `text` with the characters that roff interprets escaped, and `code` between backticks in bold.
std::string roff(const std::string& text);

/// flow(1). `day` is printed in the page's footer.
std::string program_page(const CLI::App& app, std::time_t day);
/// flow-VERB(1).
std::string verb_page(const CLI::App& verb, std::time_t day);
/// flow-executor(1), the program that flow starts for tasks.
std::string executor_page(std::time_t day);

}  // namespace flow::cli
