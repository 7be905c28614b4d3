// flow resume [RUN]
#include "engine/cli/display/run_options.hpp"
#include "engine/cli/display/watch.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

void add_resume(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<RunArguments>();
  auto selector = std::make_shared<std::string>();
  auto code = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "resume", "continue an interrupted or failed run");
  add_run_argument(verb, *selector);
  verb->add_option("--code", *code,
                   "`new`: use the current script on disk (default: the run's own code)")
      ->type_name("new")
      ->check(one_of("--code", {"new"}));
  add_rerun_options(verb, context, *arguments);
  verb->callback([&context, arguments, selector, code] {
    context.action = [&context, arguments, selector, code] {
      Interrupts interrupts;
      RunOptions options = run_options(*arguments);
      EngineOptions requested = engine_options(context, *arguments);
      // A run that succeeded is only shown, which needs no engine and no lock.
      RunInfo before = find_run(context, *selector);
      if (before.status == "succeeded" && code->empty()) {
        if (context.json || !context.quiet) print_run(before, context.json);
        return int{kDone};
      }
      Engine engine(requested);
      Run run = engine.resume(before.id, options, *code == "new");
      return watch(engine, run, context, {options.grace_ms, ""}, interrupts);
    };
  });
}

}  // namespace flow::cli
