// flow graph FILE|RUN [--format dot|svg|mermaid|json]
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "engine/cli/display/graph_text.hpp"
#include "engine/cli/display/run_options.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace fs = std::filesystem;

namespace {

bool is_installed(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

void print_svg(const std::string& dot) {
  if (!is_installed("dot")) {
    fail_environment(
        "--format svg needs Graphviz, and its program `dot` is not on the PATH. Install the "
        "package "
        "graphviz, or use --format dot or mermaid.");
  }
  flush_output();
  std::FILE* pipe = popen("dot -Tsvg", "we");
  if (pipe == nullptr) fail_environment("cannot start `dot`.");
  std::fwrite(dot.data(), 1, dot.size(), pipe);
  int status = pclose(pipe);
  if (status != 0)
    fail_environment("`dot -Tsvg` failed with status " + std::to_string(WEXITSTATUS(status)) + ".");
}

}  // namespace

void add_graph(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<RunArguments>();
  auto target = std::make_shared<std::string>();
  auto format = std::make_shared<std::string>("dot");
  CLI::App* verb = add_verb(app, context, "graph", "print the graph of a script or a run");
  verb->add_option("target", *target,
                   "a script, a folder with a pipeline.lua, - for the standard input, or a run")
      ->type_name("FILE|RUN")
      ->required();
  verb->add_option("--format", *format, "output format: dot, svg, mermaid or json (default: dot)")
      ->type_name("FORMAT")
      ->check(one_of("--format", {"dot", "svg", "mermaid", "json"}));
  add_parameter_options(verb, *arguments);
  verb->callback([&context, arguments, target, format] {
    context.action = [&context, arguments, target, format] {
      RunOptions options = run_options(*arguments);
      PlanInfo plan = names_a_script(*target)
                          ? build_graph(script_path(*target, options), context.engine(), options)
                          : Reader(context.engine()).graph(*target);
      for (const std::string& line : plan.printed) print_printed(line);
      if (*format == "svg" && !context.json) {
        print_svg(graph_dot(plan));
        return int{kDone};
      }
      std::string text = context.json || *format == "json" ? graph_json(plan)
                         : *format == "mermaid"            ? graph_mermaid(plan)
                                                           : graph_dot(plan);
      print_text(text);
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
