// Manual pages in the man macros of roff.
#include "engine/cli/manual/manual_page.hpp"

#include <algorithm>
#include <sstream>

#include "flow/flow.hpp"

namespace flow::cli {

namespace {

/// One character of text. A hyphen of roff is not the ASCII one that a shell reads.
std::string escaped(char c) {
  switch (c) {
    case '\\':
      return "\\e";
    case '-':
      return "\\-";
    case '\'':
      return "\\(aq";
    case '^':
      return "\\(ha";
    case '~':
      return "\\(ti";
    default:
      return std::string(1, c);
  }
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) out += escaped(c);
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

/// Text in lines of at most 80 bytes where words permit. A line that began with a period would be a
/// request of roff.
std::string line_of(const std::string& text) {
  constexpr size_t kWidth = 80;
  std::istringstream words(roff(text));
  std::string out, line, word;
  while (words >> word) {
    if (!line.empty() && line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? (word.starts_with('.') ? "\\&" : "") : " ") + word;
  }
  return out + line + "\n";
}

std::string section(const std::string& title) { return ".SH " + title + "\n"; }

/// A term that is already roff, and its meaning.
std::string term(const std::string& name, const std::string& meaning) {
  return ".TP\n" + name + "\n" + line_of(meaning);
}

std::string terms(const TermTexts& texts) {
  std::string out;
  for (const auto& [name, meaning] : texts) out += term(bold(name), meaning);
  return out;
}

std::string paragraphs(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find("\n\n", at), text.size());
    out += (at == 0 ? "" : ".PP\n") + line_of(text.substr(at, end - at));
    at = std::min(end + 2, text.size());
  }
  return out;
}

std::string examples(const VerbText& text) {
  std::string out;
  for (const auto& [command, what] : text.commands)
    out += (out.empty() ? "" : ".PP\n") + line_of(what + ":") + ".PP\n.RS 4\n.EX\n" +
           escaped(command) + "\n.EE\n.RE\n";
  return out.empty() ? "" : section("EXAMPLES") + out;
}

/// "-j, --jobs N": CLI11 writes " ..." after the name of a value of an option that may be repeated.
std::string names_of(const CLI::Option& option) {
  std::string out;
  auto add = [&](const std::string& name) { out += (out.empty() ? "" : ", ") + bold(name); };
  for (const std::string& name : option.get_snames()) add("-" + name);
  for (const std::string& name : option.get_lnames()) add("--" + name);
  return option.get_items_expected_max() > 0 ? out + " " + italic(option.get_type_name()) : out;
}

std::string options_of(const CLI::App& app) {
  std::string positionals, options;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      positionals += term(italic(option->get_type_name()), option->get_description());
    } else {
      options += term(names_of(*option), option->get_description());
    }
  }
  return (positionals.empty() ? "" : section("ARGUMENTS") + positionals) + section("OPTIONS") +
         options;
}

std::string synopsis_of(const CLI::App& verb) {
  std::string out = bold("flow " + verb.get_name()) + " [" + italic("OPTION") + "]...";
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_positional()) continue;
    std::string name = italic(option->get_type_name());
    out += option->get_required() ? " " + name : " [" + name + "]";
  }
  return section("SYNOPSIS") + out + "\n";
}

std::string heading(const std::string& page, const std::string& what, std::time_t day) {
  std::string upper = page;
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  constexpr size_t kDate = 16;
  char date[kDate] = "";
  std::tm parts{};
  if (gmtime_r(&day, &parts) != nullptr) std::strftime(date, sizeof date, "%Y-%m-%d", &parts);
  return ".\\\" Made by `flow manual` from the options of the program.\n.TH " + escaped(upper) +
         " 1 \"" + date + "\" \"flow " + version() + "\" \"flow\"\n" + section("NAME") +
         escaped(page) + " \\- " + roff(what) + "\n";
}

std::string see_also(std::vector<std::string> pages) {
  std::sort(pages.begin(), pages.end());
  std::string out;
  for (const std::string& page : pages)
    out += (out.empty() ? ".BR " : ",\n.BR ") + escaped(page) + " (1)";
  return section("\"SEE ALSO\"") + out + "\n";
}

}  // namespace

std::string roff(const std::string& text) {
  std::string out;
  bool is_code = false;
  for (char c : text) {
    if (c == '`') {
      is_code = !is_code;
      out += is_code ? "\\fB" : "\\fR";
    } else {
      out += c == '\n' ? " " : escaped(c);
    }
  }
  return out;
}

const VerbText& verb_text(const std::string& verb) {
  static const VerbText none{"", "", {}, {}};
  for (const VerbText& text : verb_texts())
    if (text.verb == verb) return text;
  return none;
}

std::string program_page(const CLI::App& app, std::time_t day) {
  std::string verbs;
  std::vector<std::string> pages;
  for (const CLI::App* verb : listed_verbs(app)) {
    verbs += term(bold(verb->get_name()), verb->get_description());
    pages.push_back("flow-" + verb->get_name());
  }
  return heading("flow", "durable pipelines in Lua", day) + section("SYNOPSIS") + bold("flow") +
         " " + italic("VERB") + " [" + italic("OPTION") + "]... [" + italic("ARGUMENT") + "]...\n" +
         section("DESCRIPTION") + paragraphs(program_description()) + section("VERBS") + verbs +
         options_of(app) + section("\"EXIT STATUS\"") + terms(exit_code_texts()) +
         section("ENVIRONMENT") + terms(variable_texts()) + section("FILES") +
         terms(file_texts("")) + examples(verb_text("")) + see_also(pages);
}

std::string verb_page(const CLI::App& verb, std::time_t day) {
  const VerbText& text = verb_text(verb.get_name());
  std::vector<std::string> pages = {"flow"};
  for (const std::string& name : text.related) pages.push_back("flow-" + name);
  return heading("flow-" + verb.get_name(), verb.get_description(), day) + synopsis_of(verb) +
         section("DESCRIPTION") + paragraphs(text.description) + options_of(verb) +
         section("\"EXIT STATUS\"") + terms(exit_code_texts()) + section("ENVIRONMENT") +
         paragraphs(
             "`FLOW_STATE` names the state's folder, without --state. `flow`(1) has all "
             "variables.") +
         section("FILES") + terms(file_texts(verb.get_name())) + examples(text) + see_also(pages);
}

std::string executor_page(std::time_t day) {
  return heading("flow-executor", "run the tasks of flow", day) + section("SYNOPSIS") +
         bold("flow-executor") + "\n" + section("DESCRIPTION") +
         paragraphs(
             "`flow` starts this program for each CPU slot and for building graphs. It "
             "lies beside `flow`, takes no options, and is never started by hand.") +
         see_also({"flow", "flow-run"});
}

}  // namespace flow::cli
