// flow __complete WORD…: what may stand in the place of the last word of a command line, for the
// scripts of `flow completion`. It prints one candidate on a line, after a first line that says
// what else fits: `files`, `folders` or `none`.
#include "engine/cli/display/candidates.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/cli/display/run_options.hpp"

namespace flow::cli {

namespace {

namespace fs = std::filesystem;

struct Candidates {
  std::vector<std::string> words;
  bool files = false, folders = false;
};

/// A command line up to the last word.
struct PartialLine {
  const CLI::App* verb = nullptr;
  std::vector<std::string> arguments;   // of the verb, without options
  const CLI::Option* option = nullptr;  // whose value the last word is
  std::string name;                     // of a parameter, in `--param NAME=VALUE`
  std::string last;
};

bool takes_value(const CLI::Option* option) { return option->get_items_expected_max() > 0; }

/// bash gives `--param lr=1` as the words `--param`, `lr`, `=` and `1`.
void join_equals_signs(std::vector<std::string>& words) {
  for (size_t i = 1; i < words.size(); i++) {
    if (words[i] != "=") continue;
    words[i - 1] += "=";
    bool has_value = i + 1 < words.size();
    if (has_value) words[i - 1] += words[i + 1];
    auto from = words.begin() + static_cast<ptrdiff_t>(i);
    words.erase(from, from + (has_value ? 2 : 1));
    i--;
  }
}

/// Reads all words but the last. The state's folder is taken from them.
PartialLine read_line(const CLI::App& app, std::vector<std::string> words, std::string& state) {
  PartialLine line;
  if (words.empty()) words.emplace_back();
  join_equals_signs(words);
  line.last = words.back();
  words.pop_back();
  bool is_option_possible = true;
  for (const std::string& word : words) {
    if (line.option != nullptr) {
      if (line.option->get_name() == "--state") state = word;
      line.option = nullptr;
    } else if (is_option_possible && word == "--") {
      is_option_possible = false;
    } else if (is_option_possible && word.starts_with('-')) {
      size_t equals = word.find('=');
      const CLI::App* of = line.verb == nullptr ? &app : line.verb;
      const CLI::Option* option = of->get_option_no_throw(word.substr(0, equals));
      if (option == nullptr || !takes_value(option)) continue;
      if (equals == std::string::npos) line.option = option;
      if (equals != std::string::npos && option->get_name() == "--state")
        state = word.substr(equals + 1);
    } else if (line.verb == nullptr) {
      auto is_named = [&](const CLI::App* verb) { return verb->get_name() == word; };
      std::vector<const CLI::App*> verbs = app.get_subcommands(is_named);
      if (verbs.empty()) fail("flow has no verb `" + word + "`.");
      line.verb = verbs.front();
    } else {
      line.arguments.push_back(word);
    }
  }
  return line;
}

/// The positional argument in which the last word stands; null if there is none.
const CLI::Option* argument_at(const CLI::App& verb, size_t place) {
  const CLI::Option* last = nullptr;
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_positional()) continue;
    if (place == 0) return option;
    place--;
    last = option;
  }
  return last != nullptr && last->get_items_expected_max() > 1 ? last : nullptr;
}

void add_names(const CLI::App& app, Candidates& to) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    to.words.push_back(verb->get_name());
}

void add_options(const CLI::App& verb, Candidates& to) {
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) to.words.push_back("--" + name);
    for (const std::string& name : option->get_snames()) to.words.push_back("-" + name);
  }
}

void add_runs(const Reader& reader, Candidates& to) {
  std::vector<RunInfo> runs = reader.list();
  if (!runs.empty()) to.words.emplace_back("last");
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    to.words.push_back(run->id);
    if (!run->name.empty()) to.words.push_back(run->name);
  }
}

/// The names under which services are served.
void add_served_names(const Reader& reader, Candidates& to) {
  std::set<std::string> seen;
  for (const ServiceInfo& service : reader.services())
    if (!service.name.empty() && seen.insert(service.name).second) to.words.push_back(service.name);
}

/// Instances of maps only once a bracket is typed: there may be many.
void add_tasks(const RunInfo& run, const std::string& typed, Candidates& to) {
  bool with_instances = typed.find('[') != std::string::npos;
  std::set<std::string> seen;
  for (const TaskInfo& task : run.tasks) {
    std::string name = with_instances ? tagged_name(task.name, task.tag)
                                      : task.name.substr(0, task.name.find('['));
    if (seen.insert(name).second) to.words.push_back(name);
  }
}

void add_parts(const Value& result, Candidates& to) {
  if (result.kind() != Value::Kind::table) return;
  for (const auto& [key, field] : result.as_table().fields)
    if (key.kind() == Value::Kind::string) to.words.push_back(key.as_string());
}

/// "one of fast, exact" as words.
std::vector<std::string> choices_of(const ParameterInfo& parameter) {
  if (parameter.type == "boolean") return {"true", "false"};
  const std::string before = "one of ", separator = ", ";
  if (!parameter.allowed.starts_with(before)) return {};
  std::vector<std::string> words;
  for (size_t at = before.size();;) {
    size_t end = parameter.allowed.find(separator, at);
    words.push_back(parameter.allowed.substr(at, end - at));
    if (end == std::string::npos) return words;
    at = end + separator.size();
  }
}

/// The script is loaded, as by `flow run FILE --help`.
void add_parameters(const PartialLine& line, Candidates& to) {
  if (line.arguments.empty() || line.arguments[0] == "-") return;
  size_t equals = line.last.find('=');
  for (const ParameterInfo& parameter : pipeline_parameters(script_path(line.arguments[0]))) {
    if (equals == std::string::npos) {
      to.words.push_back(parameter.name + "=");
    } else if (parameter.name == line.last.substr(0, equals)) {
      for (const std::string& word : choices_of(parameter))
        to.words.push_back(parameter.name + "=" + word);
      to.files = parameter.type == "path" || parameter.type == "files";
    }
  }
}

void add_profiles_of(const fs::path& file, Candidates& to) {
  const std::string before = "[profile.";
  std::ifstream in(file);
  for (std::string text; std::getline(in, text);) {
    if (!text.starts_with(before)) continue;
    to.words.push_back(
        text.substr(before.size(), text.find_first_of(".]", before.size()) - before.size()));
  }
}

/// The tables of flow.toml beside the script and in the user's configuration.
void add_profiles(const PartialLine& line, Candidates& to) {
  std::error_code failed;
  fs::path script = line.arguments.empty() ? "." : line.arguments[0];
  fs::path folder = fs::is_directory(script, failed) ? script : script.parent_path();
  add_profiles_of(folder / "flow.toml", to);
  if (const char* home = std::getenv("HOME"))
    add_profiles_of(fs::path(home) / ".config" / "flow" / "flow.toml", to);
}

/// The words that the option's check allows: the name of that of one_of().
void add_allowed(const CLI::Option& option, Candidates& to) {
  try {
    std::istringstream words(const_cast<CLI::Option&>(option).get_validator(0)->get_name());
    for (std::string word; words >> word;) to.words.push_back(word);
  } catch (const CLI::OptionNotFound&) {
    // It has no check.
  }
}

/// For an option's value or an argument, by its type.
void add_values(const CLI::Option& option, const PartialLine& line, const VerbContext& context,
                Candidates& to) {
  const std::string type = option.get_type_name();
  auto reader = [&] { return Reader(context.engine()); };
  auto run = [&] { return reader().show(line.arguments.empty() ? "last" : line.arguments[0]); };
  to.files = type.starts_with("FILE");
  to.folders = type == "DIR";
  add_allowed(option, to);
  if (option.get_name() == "--param") add_parameters(line, to);
  if (option.get_name() == "--profile") add_profiles(line, to);
  if (type == "RUN" || type == "FILE|RUN") add_runs(reader(), to);
  bool may_be_task = type == "RUN" && line.verb->get_option_no_throw("task") != nullptr &&
                     line.verb->get_name() != "retry";
  if (may_be_task) add_tasks(reader().show("last"), line.last, to);
  if (type.starts_with("TASK")) add_tasks(run(), line.last, to);
  if (type == "PART") add_parts(reader().value(line.arguments[0]), to);
  if (type == "NAME" && line.verb->get_name() == "rollback") add_served_names(reader(), to);
  if (type == "NAME" && line.verb->get_name() == "signal")
    for (std::string& name : awaited_signals(run())) to.words.push_back(std::move(name));
}

void find_candidates(const PartialLine& line, const CLI::App& app, const VerbContext& context,
                     Candidates& to) {
  bool is_option = line.option == nullptr && line.last.starts_with('-');
  if (is_option) return add_options(line.verb == nullptr ? app : *line.verb, to);
  if (line.option != nullptr) return add_values(*line.option, line, context, to);
  if (line.verb == nullptr) return add_names(app, to);
  const CLI::Option* argument = argument_at(*line.verb, line.arguments.size());
  if (argument != nullptr) add_values(*argument, line, context, to);
}

}  // namespace

int print_candidates(const CLI::App& app, VerbContext& context, std::vector<std::string> words) {
  Candidates candidates;
  try {
    PartialLine line = read_line(app, std::move(words), context.state);
    find_candidates(line, app, context, candidates);
  } catch (const std::exception&) {
    // No state, no such run, or a script that cannot be loaded: what was found so far is printed.
  }
  print_line(candidates.files ? "files" : candidates.folders ? "folders" : "none");
  for (const std::string& word : candidates.words) print_line(word);
  return kDone;
}

}  // namespace flow::cli
