// flow trace [RUN] -o FILE.json
#include "engine/cli/publish/publish_verbs.hpp"
#include "flow/exchange.hpp"

namespace flow::cli {

namespace {

struct TraceArguments {
  std::string run, out;
  bool force = false;
};

int run_trace(const VerbContext& context, const TraceArguments& arguments) {
  if (arguments.out.empty()) fail("`flow trace` needs -o: give the file to write.");
  if (arguments.out == "-")
    fail("`flow trace` cannot write to stdout: name a file (`./-`: a file with this name).");
  std::string path = write_trace(context.engine(), arguments.run, arguments.out, arguments.force);
  print_line(context.json ? "{\"path\":" + json_text(path) + "}" : path);
  return kDone;
}

}  // namespace

void add_trace(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<TraceArguments>();
  CLI::App* verb = add_verb(app, context, "trace", "write a run as a timeline for Perfetto");
  add_run_argument(verb, arguments->run);
  verb->add_option("-o,--out", arguments->out, "JSON file to write")->type_name("FILE");
  verb->add_flag("--force", arguments->force, "replace a file that exists");
  verb->callback([&context, arguments] {
    context.action = [&context, arguments] { return run_trace(context, *arguments); };
  });
}

}  // namespace flow::cli
