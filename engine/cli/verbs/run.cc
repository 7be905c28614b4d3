// flow run FILE|DIR|-
#include "engine/cli/display/background.hpp"
#include "engine/cli/display/config_options.hpp"
#include "engine/cli/display/watch.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

void add_run(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<RunArguments>();
  auto file = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "run", "run a pipeline to its end");
  verb->add_option("file", *file,
                   "a script, a folder with a pipeline.lua, or - for the standard input")
      ->type_name("FILE|DIR")
      ->required();
  add_parameter_options(verb, *arguments);
  add_jobs_option(verb, *arguments);
  add_resource_option(verb, arguments->resources);
  add_workers_option(verb, *arguments);
  add_slurm_options(verb, *arguments);
  add_head_options(verb, context);
  add_profile_option(verb, context);
  verb->add_flag("--fail-fast", arguments->fail_fast,
                 "start no more tasks after the first failure");
  verb->add_flag("--strict", arguments->strict,
                 "exit with code 1 if failures of tasks with `on_error = \"ignore\"` were ignored");
  verb->add_option("--name", arguments->name, "name of the run (default: none)")->type_name("NAME");
  verb->add_option("--out", arguments->out, "folder or s3://BUCKET/PREFIX to copy the result to")
      ->type_name("DIR");
  add_on_end_option(verb, *arguments);
  add_log_options(verb, context);
  add_watch_options(verb, context, *arguments);
  add_detach_option(verb, *arguments);
  add_budget_option(verb, *arguments);
  verb->callback([&context, arguments, file] {
    context.action = [&context, arguments, file] {
      auto interrupts = std::make_unique<Interrupts>();
      configure_run(context, *arguments, *file);
      RunOptions options = run_options(*arguments);
      if (auto code = run_in_background(context, *arguments, interrupts, options)) return *code;
      options.config = context.config;
      EngineOptions requested = engine_options(context, *arguments);
      std::string script = script_path(*file, options);
      if (!arguments->out.empty()) check_target(arguments->out);
      keep_left_runs(context, *arguments);
      Engine engine(requested);
      enter_background(context);
      Run run = engine.run(script, {}, options);
      WatchOptions watched{options.grace_ms, arguments->out, arguments->strict, options.detached};
      return watch(engine, run, context, watched, *interrupts);
    };
  });
}

}  // namespace flow::cli
