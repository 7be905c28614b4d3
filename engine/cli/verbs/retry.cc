// flow retry RUN [TASK]
#include "engine/cli/display/config_options.hpp"
#include "engine/cli/display/watch.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

void add_retry(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<RunArguments>();
  auto selector = std::make_shared<std::string>();
  auto task = std::make_shared<std::string>();
  CLI::App* verb =
      add_verb(app, context, "retry", "run all failed tasks of a run again, or one task");
  add_run_argument(verb, *selector, true);
  verb->add_option("task", *task, "a task, even one that succeeded")->type_name("TASK");
  add_rerun_options(verb, context, *arguments);
  verb->callback([&context, arguments, selector, task] {
    context.action = [&context, arguments, selector, task] {
      Interrupts interrupts;
      configure_verb(context, arguments->workers == 0 && arguments->on.empty());
      RunInfo before = find_run(context, *selector);
      configure_again(context, *arguments, before, false);
      RunOptions options = run_options(*arguments);
      Engine engine(engine_options(context, *arguments));
      Run run = engine.retry(before.id, *task, options);
      return watch(engine, run, context, {options.grace_ms, "", arguments->strict}, interrupts);
    };
  });
}

}  // namespace flow::cli
