// flow cancel RUN
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

void add_cancel(CLI::App& app, Session& session) {
  auto selector = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, session, "cancel", "end a run for good");
  add_run_argument(verb, *selector, true);
  add_head_options(verb, session);
  verb->callback([&session, selector] {
    session.action = [&session, selector] {
      std::string run = find_run(session, *selector).id;
      Engine engine(session.engine());
      engine.cancel(run);
      if (session.json) {
        print_line("{\"run\":" + json_text(run) + ",\"status\":\"cancelled\"}");
      } else {
        print_line("cancelled " + run);
      }
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
