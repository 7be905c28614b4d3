// flow cancel RUN
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

bool is_over(const std::string& status) {
  return status == "succeeded" || status == "failed" || status == "cancelled";
}

/// The id of the run that a name means: the one that serves, else the newest that has not ended.
std::string run_to_cancel(const VerbContext& context, const std::string& selector) {
  RunInfo newest = find_run(context, selector);
  bool is_by_name = newest.name == selector && newest.id != selector;
  if (!is_by_name || newest.status == "serving") return newest.id;
  if (!context.head.empty()) {
    for (const ServiceInfo& service : Engine(context.engine()).services())
      if (service.name == selector && service.status == "serving") return service.version;
    return newest.id;
  }
  std::string open;
  for (const RunInfo& run : Reader(context.engine()).list()) {
    if (run.name != selector) continue;
    if (run.status == "serving") return run.id;
    if (!is_over(run.status)) open = run.id;
  }
  return open.empty() ? newest.id : open;
}

}  // namespace

void add_cancel(CLI::App& app, VerbContext& context) {
  auto selector = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "cancel", "cancel a run; it cannot be resumed");
  add_run_argument(verb, *selector, true);
  add_head_options(verb, context);
  verb->callback([&context, selector] {
    context.action = [&context, selector] {
      std::string run = run_to_cancel(context, *selector);
      Engine engine(context.engine());
      engine.cancel(run);
      if (context.json) {
        print_line("{\"run\":" + json_text(run) + ",\"status\":\"cancelled\"}");
      } else {
        print_line("cancelled " + run);
      }
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
