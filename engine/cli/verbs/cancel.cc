// flow cancel RUN
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

void add_cancel(CLI::App& app, VerbContext& context) {
  auto selector = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "cancel", "cancel a run; it cannot be resumed");
  add_run_argument(verb, *selector, true);
  add_head_options(verb, context);
  verb->callback([&context, selector] {
    context.action = [&context, selector] {
      std::string run = find_run(context, *selector).id;
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
