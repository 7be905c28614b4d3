// Parses the command line, runs the verb, and converts errors to a paragraph and an exit code.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "engine/cli/costs/cost_verbs.hpp"
#include "engine/cli/display/background.hpp"
#include "engine/cli/display/candidates.hpp"
#include "engine/cli/display/config_options.hpp"
#include "engine/cli/display/signals.hpp"
#include "engine/cli/publish/publish_verbs.hpp"
#include "engine/cli/top/top.hpp"
#include "engine/cli/verbs/verbs.hpp"
#include "flow/process.hpp"

namespace flow::cli {

namespace {

std::unique_ptr<CLI::App> make_app(VerbContext& context) {
  auto app = std::make_unique<CLI::App>("Durable pipelines in Lua", "flow");
  app->set_version_flag("--version", std::string("flow ") + version());
  app->add_option("--state", context.state,
                  "the state's folder; else $FLOW_STATE, the nearest .flow/ upwards, or ./.flow")
      ->type_name("DIR");
  app->add_flag("--json", context.json, "print JSON, one object per line");
  add_run(*app, context);
  add_resume(*app, context);
  add_retry(*app, context);
  add_serve(*app, context);
  add_deploy(*app, context);
  add_rollback(*app, context);
  add_stop(*app, context);
  add_cancel(*app, context);
  add_signal(*app, context);
  add_ls(*app, context);
  add_services(*app, context);
  add_show(*app, context);
  add_get(*app, context);
  add_logs(*app, context);
  add_metrics(*app, context);
  add_compare(*app, context);
  add_cost(*app, context);
  add_advise(*app, context);
  add_why(*app, context);
  add_diff(*app, context);
  add_graph(*app, context);
  add_export(*app, context);
  add_import(*app, context);
  add_trace(*app, context);
  add_ui(*app, context);
  add_report(*app, context);
  add_top(*app, context);
  add_lint(*app, context);
  add_plan(*app, context);
  add_gc(*app, context);
  add_head(*app, context);
  add_worker(*app, context);
  add_nodes(*app, context);
  add_doctor(*app, context);
  add_init(*app, context);
  add_repl(*app, context);
  add_completion(*app, context);
  add_manual(*app, context);
  context.app = app.get();
  return app;
}

/// The first word after flow's own options: the intended verb. "" if an unknown option comes before
/// it.
std::string first_word(int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    std::string word = argv[i];
    if (word == "--state") {
      i++;
    } else if (word.empty() || word[0] != '-') {
      return word;
    } else if (word != "--json" && !word.starts_with("--state=")) {
      return "";
    }
  }
  return "";
}

[[noreturn]] void fail_without_value(const std::string& option) {
  fail(option + " needs a value: give one, or leave the option out.");
}

/// CLI11 takes the next word as the value of `--name=`.
void check_equals_signs(const CLI::App& app, const std::vector<char*>& words,
                        const std::string& verb) {
  for (size_t i = 1; i < words.size() && std::strcmp(words[i], "--") != 0; i++) {
    std::string word = words[i];
    if (!word.starts_with("--") || !word.ends_with('=')) continue;
    word.pop_back();
    const CLI::Option* option = app.get_option_no_throw(word);
    if (option == nullptr && !verb.empty())
      option = app.get_subcommand(verb)->get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_max() > 0) fail_without_value(word);
  }
}

/// An empty argument usually comes from an unset shell variable, and leaving the argument out would
/// mean something else. No option accepts an empty value; add an exception here if one ever does.
void check_not_empty(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") == values.end()) continue;
    if (!option->get_positional()) fail_without_value(option->get_name());
    fail("`flow " + app.get_name() + "`: " + option->get_type_name() + " (" +
         option->get_description() +
         ") is empty; it may come from an unset shell variable. Give a value" +
         (option->get_required() ? "." : ", or leave it out."));
  }
}

void check_verb(const CLI::App& app, const std::string& word) {
  if (word.empty()) return;
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    if (verb->get_name() == word) return;
  for (const CLI::App* verb : listed_verbs(app)) names.push_back(verb->get_name());
  std::string near = did_you_mean(word, names);
  if (near.empty() && word.ends_with(".lua")) near = " Did you mean `flow run " + word + "`?";
  fail("flow has no verb `" + word + "`." + near + " `flow --help` lists them.");
}

/// The first required argument that is missing.
const CLI::Option* missing_argument(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_positional() && option->get_required() && option->count() == 0) return option;
  }
  return nullptr;
}

/// An option without its value, or given more than once. CLI11's text is "--name: …".
std::string describe_mismatch(const CLI::App& verb, const std::string& what) {
  std::string name = what.substr(0, what.find(':'));
  const CLI::Option* option = verb.get_option_no_throw(name);
  if (what.find("At Most") != std::string::npos) return name + " is given more than once.";
  if (option == nullptr) return what + ".";
  return name + " needs a value, " + option->get_type_name() + ": " + option->get_description() +
         ".";
}

/// For an option that other verbs have: " It is an option of `flow head` and `flow run`."
std::string verbs_with(const CLI::App& app, const std::string& option) {
  constexpr size_t kNamedMax = 4;
  std::vector<std::string> verbs;
  for (const CLI::App* verb : listed_verbs(app))
    if (verb->get_option_no_throw(option) != nullptr)
      verbs.push_back("`flow " + verb->get_name() + "`");
  if (verbs.size() > kNamedMax) {
    verbs.resize(kNamedMax);
    verbs.back() = "others";
  }
  std::string text;
  for (size_t i = 0; i < verbs.size(); i++)
    text += (i == 0 ? " It is an option of " : i + 1 == verbs.size() ? " and " : ", ") + verbs[i];
  return text.empty() ? "" : text + ".";
}

/// Describes CLI11's error, with the nearest option if one is unknown.
std::string describe(const CLI::App& app, const CLI::ParseError& error) {
  auto parsed = app.get_subcommands();
  bool before_verb = parsed.empty() || !app.remaining(false).empty();
  const CLI::App* verb = before_verb ? &app : parsed.front();
  std::string command = before_verb ? "flow" : "flow " + verb->get_name();
  std::string help = " `" + command + " --help` shows its arguments.";
  std::vector<std::string> extras = app.remaining(true);
  std::string word = extras.empty() ? "" : extras.front();
  bool is_unknown = !word.empty() && word[0] == '-';
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr && !is_unknown) {
    const CLI::Option* missing = missing_argument(*verb);
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && missing != nullptr) {
      return "`" + command + "` needs " + missing->get_type_name() + ": " +
             missing->get_description() + "." + help;
    }
    std::string what = error.what();
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
      return "`" + command + "`: " + describe_mismatch(*verb, what) + help;
    return "`" + command + "`: " + what + "." + help;
  }
  if (!is_unknown) {
    return "`" + command + "` does not take the argument `" + word + "`." + help;
  }
  word = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : verb->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  bool is_long = word.starts_with("--");  // a two-letter option is near to every other one
  std::string hint = is_long && !before_verb ? verbs_with(app, word) : "";
  if (hint.empty() && is_long) hint = did_you_mean(word, names);
  return "`" + command + "` has no option `" + word + "`." + hint + help;
}

/// Makes a write to a pipe without a reader, or beyond the file size limit, fail instead of ending
/// the process. These are handlers and not SIG_IGN, because ignored signals stay ignored in every
/// child.
void survive_failed_writes() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  for (int number : {SIGPIPE, SIGXFSZ}) sigaction(number, &action, nullptr);
}

/// `flow help` and `flow help VERB` are `flow --help` and `flow VERB --help`.
std::vector<char*> words_of(int argc, char** argv) {
  static char help[] = "--help";
  std::vector<char*> words(argv, argv + argc);
  constexpr size_t kMostWords = 3;
  bool is_help_verb = argc > 1 && std::strcmp(argv[1], "help") == 0 && words.size() <= kMostWords;
  if (!is_help_verb) return words;
  words.erase(words.begin() + 1);
  words.push_back(help);
  return words;
}

/// Whether the verb creates a Signals object.
bool takes_signals(const CLI::App& app) {
  const CLI::App& verb = *app.get_subcommands().front();
  for (const char* name : {"run", "resume", "retry", "serve", "deploy", "rollback", "head", "ui"})
    if (verb.get_name() == name) return true;
  return verb.get_name() == "worker" && verb.count("--show") == 0;
}

/// Chooses the state of verbs that use one. Verbs with a script or a run do it themselves.
void configure(const CLI::App& verb, VerbContext& context) {
  for (const char* name : {"run", "plan", "resume", "retry", "serve", "deploy", "rollback", "lint",
                           "worker", "init", "repl", "completion", "import"})
    if (verb.get_name() == name) return;
  configure_verb(context, verb.get_option_no_throw("--head") != nullptr);
}

/// FILE of `flow run FILE --help`, `flow plan FILE --help` and `flow graph FILE --help`; "" for
/// other verbs, for a run, or without FILE.
std::string script_of_help(const CLI::App& app) {
  for (const CLI::App* verb : app.get_subcommands()) {
    if (verb->get_option_no_throw("--param") == nullptr) continue;
    for (const char* name : {"file", "target"}) {
      const CLI::Option* file = verb->get_option_no_throw(name);
      if (file == nullptr || file->results().empty()) continue;
      bool is_script = std::strcmp(name, "file") == 0 || names_a_script(file->results()[0]);
      if (is_script) return file->results()[0];
    }
  }
  return "";
}

void print_parameters(const std::string& script) {
  if (script == "-") {
    print_line("");
    print_line(
        "With --help the standard input is not read: to list the parameters of its pipeline, save "
        "the script and name the file.");
    return;
  }
  std::vector<std::vector<std::string>> rows;
  for (const ParameterInfo& parameter : pipeline_parameters(script_path(script))) {
    std::string what = parameter.help;
    auto add = [&](const std::string& more) { what += (what.empty() ? "" : "; ") + more; };
    if (!parameter.allowed.empty()) add(parameter.allowed);
    add(parameter.is_required ? "required" : "default: " + parameter.default_value);
    rows.push_back({"  " + parameter.name, parameter.type, what});
  }
  print_line("");
  print_line(rows.empty() ? "The pipeline of " + script + " has no parameters."
                          : "Parameters of the pipeline, for --param NAME=VALUE:");
  print_text(table(rows));
}

int parse_and_act(int given, char** all, VerbContext& context) {
  if (given > 0) context.words.assign(all + 1, all + given);
  std::vector<char*> words = words_of(given, all);
  int argc = static_cast<int>(words.size());
  char** argv = words.data();
  auto app = make_app(context);
  std::string first = first_word(argc, argv);
  if (first == kCompleteWord) {
    release_signals();
    return print_candidates(*app, context, {argv + 2, argv + argc});
  }
  check_verb(*app, first);
  check_equals_signs(*app, words, first);
  try {
    app->parse(argc, argv);
  } catch (const CLI::Success& wish) {  // --help, --version
    release_signals();
    std::ostringstream text, nothing;
    int code = app->exit(wish, text, nothing);
    print_text(text.str());
    std::string script = script_of_help(*app);
    if (!script.empty()) print_parameters(script);
    return code;
  } catch (const CLI::ParseError& error) {
    fail(describe(*app, error));
  }
  check_not_empty(*app);
  for (const CLI::App* verb : app->get_subcommands()) {
    check_not_empty(*verb);
    if (app->count("--state") > 0 && verb->count("--state") > 0)
      fail("--state is given before `" + verb->get_name() + "` and after it: leave one out.");
  }
  if (!context.action) {
    std::fputs(app->help().c_str(), stderr);
    return kWrong;
  }
  if (!takes_signals(*app)) release_signals();
  configure(*app->get_subcommands().front(), context);
  return context.action();
}

}  // namespace

int flow_main(int argc, char** argv) {
  survive_failed_writes();
  take_background();
  VerbContext context;
  int code;
  bool is_whole = true;
  try {
    code = parse_and_act(argc, argv, context);
  } catch (const Failed& failed) {
    print_error(failed.error.message);
    code = exit_code(failed.error.kind);
  } catch (...) {
    print_error(exception_text());
    code = kUnreachable;
    is_whole = false;
  }
  release_signals();
  set_exit_code(code);
  flush_output();
  report_end(code);
  if (int error = output_error(); error != 0 && error != EPIPE) {
    print_error(std::string("cannot write to the standard output: ") + std::strerror(error));
    if (code == kDone) code = kUnreachable;
    set_exit_code(code);
  }
  // A library that threw an exception may still hold its locks, so no destructor may wait for them.
  if (!is_whole) _exit(code);
  return code;
}

}  // namespace flow::cli
