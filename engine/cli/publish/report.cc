// flow report RUN [RUN…] -o FILE.html
#include "flow/report.hpp"

#include "engine/cli/publish/publish_verbs.hpp"

namespace flow::cli {

namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  ReportOptions options;
};

int run_report(const VerbContext& context, const ReportArguments& arguments) {
  if (arguments.options.target.empty())
    fail("`flow report` needs -o: give the file to write, such as `run.html`, or `-` for stdout.");
  std::vector<std::string> runs = arguments.runs;
  if (runs.empty()) runs.emplace_back("last");
  if (arguments.options.target == "-") {
    print_raw(report_html(context.engine(), runs));
    return kDone;
  }
  write_report(context.engine(), runs, arguments.options);
  const std::string& path = arguments.options.target;
  print_line(context.json ? "{\"path\":" + json_text(path) + "}" : path);
  return kDone;
}

}  // namespace

void add_report(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* verb = add_verb(app, context, "report", "write runs as one HTML file");
  verb->add_option("run", arguments->runs,
                   "ids, unique prefixes, names, or `last` (default: last); several are compared")
      ->type_name("RUN");
  verb->add_option("-o,--out", arguments->options.target, "file to write; `-`: stdout")
      ->type_name("FILE");
  verb->add_flag("--force", arguments->options.overwrites, "replace a file that exists");
  verb->callback([&context, arguments] {
    context.action = [&context, arguments] { return run_report(context, *arguments); };
  });
}

}  // namespace flow::cli
