// flow resume [RUN], flow retry RUN [TASK]
#include "engine/cli/display/background.hpp"
#include "engine/cli/display/config_options.hpp"
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
  add_profile_option(verb, context);
  add_detach_option(verb, *arguments);
  verb->callback([&context, arguments, selector, code] {
    context.action = [&context, arguments, selector, code] {
      auto interrupts = std::make_unique<Interrupts>();
      configure_verb(context, arguments->workers == 0 && arguments->on.empty());
      RunInfo before = find_run(context, *selector);
      configure_again(context, *arguments, before, *code == "new");
      RunOptions options = run_options(*arguments);
      options.config = context.config;
      EngineOptions requested = engine_options(context, *arguments);
      // A run that succeeded is only shown, which needs no engine and no lock.
      if (before.status == "succeeded" && code->empty()) {
        if (context.json || !context.quiet) print_run(before, context.json);
        return int{kDone};
      }
      if (auto left = run_in_background(context, *arguments, interrupts, options)) return *left;
      requested.resume_except = before.id;
      if (code->empty()) keep_left_runs(context, *arguments);
      Engine engine(requested);
      enter_background(context);
      Run run = engine.resume(before.id, options, *code == "new");
      WatchOptions watched{options.grace_ms, "", arguments->strict, options.detached};
      return watch(engine, run, context, watched, *interrupts);
    };
  });
}

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
      EngineOptions requested = engine_options(context, *arguments);
      requested.resume_except = before.id;
      Engine engine(requested);
      Run run = engine.retry(before.id, *task, options);
      return watch(engine, run, context, {options.grace_ms, "", arguments->strict, false},
                   interrupts);
    };
  });
}

}  // namespace flow::cli
