// flow signal RUN NAME [JSON]
#include <algorithm>

#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

/// A signal may be sent before a task waits for it, or with a wrong name.
void warn_if_not_awaited(const RunInfo& run, const std::string& name) {
  std::vector<std::string> awaited = awaited_signals(run);
  if (std::ranges::find(awaited, name) != awaited.end()) return;
  print_warning("no task of the run " + run.id + " waits for the signal `" + name +
                "` now. The run keeps the first one of this name for a task that calls "
                "ctx:wait(\"" +
                name + "\") later." + did_you_mean(name, awaited));
}

}  // namespace

void add_signal(CLI::App& app, VerbContext& context) {
  auto selector = std::make_shared<std::string>();
  auto name = std::make_shared<std::string>();
  auto json = std::make_shared<std::string>();
  CLI::App* verb =
      add_verb(app, context, "signal", "send a signal to a task that waits with ctx:wait");
  add_run_argument(verb, *selector, true);
  verb->add_option("name", *name, "name of the signal")->type_name("NAME")->required();
  verb->add_option("json", *json, "value as JSON (default: true)")->type_name("JSON");
  add_head_options(verb, context);
  verb->callback([&context, selector, name, json] {
    context.action = [&context, selector, name, json] {
      if (!json->empty()) {
        auto value = from_json(*json);
        if (!value.ok()) {
          fail("the value of the signal `" + *name + "` is not JSON: " + value.error().message +
               ". A string needs its quotes: flow signal RUN NAME '\"text\"'.");
        }
      }
      RunInfo run = find_run(context, *selector);
      Engine engine(context.engine());
      engine.signal(run.id, *name, *json);
      warn_if_not_awaited(run, *name);
      if (context.json) {
        print_line("{\"run\":" + json_text(run.id) + ",\"signal\":" + json_text(*name) + "}");
      } else {
        print_line("sent `" + *name + "` to " + run.id);
      }
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
