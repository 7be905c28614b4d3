// Parses the command line, runs the verb, turns what went wrong into a paragraph and an exit code.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>

#include "engine/cli/verbs.hpp"

namespace flow::cli {

namespace {

std::unique_ptr<CLI::App> make_app(Session& session) {
  auto app = std::make_unique<CLI::App>("Durable pipelines in Lua", "flow");
  app->set_version_flag("--version", std::string("flow ") + version());
  app->add_option("--state", session.state,
                  "the state's folder; else $FLOW_STATE, the nearest .flow/ upwards, or ./.flow")
      ->type_name("DIR");
  app->add_flag("--json", session.json, "print JSON, one object a line");
  add_run(*app, session);
  add_resume(*app, session);
  add_retry(*app, session);
  add_cancel(*app, session);
  add_signal(*app, session);
  add_ls(*app, session);
  add_show(*app, session);
  add_get(*app, session);
  add_logs(*app, session);
  add_why(*app, session);
  add_diff(*app, session);
  add_graph(*app, session);
  add_lint(*app, session);
  add_plan(*app, session);
  add_gc(*app, session);
  add_head(*app, session);
  add_worker(*app, session);
  add_doctor(*app, session);
  add_init(*app, session);
  add_repl(*app, session);
  add_completion(*app, session);
  session.app = app.get();
  return app;
}

/// The first word that is no option of flow's own: the verb, or what was meant to be one.
std::string first_word(int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    std::string word = argv[i];
    if (word == "--state") {
      i++;
      continue;
    }
    if (word.empty() || word[0] != '-') return word;
  }
  return "";
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  std::string near = nearest_name(word, names);
  return near.empty() ? "" : " Did you mean `" + near + "`?";
}

void check_verb(const CLI::App& app, const std::string& word) {
  if (word.empty()) return;
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (verb->get_name() == word) return;
    names.push_back(verb->get_name());
  }
  std::string near = did_you_mean(word, names);
  if (near.empty() && word.ends_with(".lua")) near = " Did you mean `flow run " + word + "`?";
  fail("flow has no verb `" + word + "`." + near + " `flow --help` lists them.");
}

/// What CLI11 found wrong, with the nearest option where one is unknown.
std::string describe(const CLI::App& app, const CLI::ParseError& error) {
  auto parsed = app.get_subcommands();
  const CLI::App* verb = parsed.empty() ? &app : parsed.front();
  std::string command = parsed.empty() ? "flow" : "flow " + verb->get_name();
  std::string help = " `" + command + " --help` shows what it takes.";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) {
    return "`" + command + "`: " + error.what() + "." + help;
  }
  std::vector<std::string> extras = app.remaining(true);
  std::string word = extras.empty() ? "" : extras.front();
  if (word.empty() || word[0] != '-') {
    return "`" + command + "` does not take the argument `" + word + "`." + help;
  }
  word = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : verb->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return "`" + command + "` has no option `" + word + "`." + did_you_mean(word, names) + help;
}

/// A reader that went away must not end a run: writes fail instead. A handler and no SIG_IGN,
/// because what is ignored stays ignored in every child.
void outlive_closed_pipes() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &action, nullptr);
}

int parse_and_act(int argc, char** argv, Session& session) {
  auto app = make_app(session);
  check_verb(*app, first_word(argc, argv));
  try {
    app->parse(argc, argv);
  } catch (const CLI::Success& wish) {  // --help, --version
    return app->exit(wish);
  } catch (const CLI::ParseError& error) {
    fail(describe(*app, error));
  }
  if (!session.action) {
    std::fputs(app->help().c_str(), stderr);
    return kWrong;
  }
  return session.action();
}

}  // namespace

int flow_main(int argc, char** argv) {
  outlive_closed_pipes();
  Session session;
  int code;
  try {
    code = parse_and_act(argc, argv, session);
  } catch (const Failed& failed) {
    print_error(failed.error.message);
    code = exit_code(failed.error.kind);
  } catch (const std::bad_alloc&) {
    print_error("out of memory. Close other programs, or run fewer things at once with --jobs.");
    code = kUnreachable;
  }
  bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!is_written && errno != EPIPE) {
    print_error(std::string("cannot write to the standard output: ") + std::strerror(errno));
    if (code == kDone) code = kUnreachable;
  }
  return code;
}

}  // namespace flow::cli
