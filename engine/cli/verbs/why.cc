// flow why [RUN] [TASK], flow why TASK: why a task waits, ran again or failed.
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

void add_why(CLI::App& app, VerbContext& context) {
  auto selector = std::make_shared<std::string>();
  auto task = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "why", "explain why a task waits, ran again or failed");
  add_run_argument(verb, *selector);
  auto verbose = std::make_shared<bool>(false);
  verb->add_option("task", *task, "one task")->type_name("TASK");
  add_verbose_option(verb, *verbose);
  verb->callback([&context, selector, task, verbose] {
    context.action = [&context, selector, task, verbose] {
      Reader reader(context.engine());
      bool is_of_last = select_task_of_last(reader, *selector, *task);
      std::string text = reader.why(*selector, *task, {.each_task = *verbose});
      if (!*verbose) text = with_short_digests(text);
      while (!text.empty() && text.back() == '\n') text.pop_back();
      if (context.json) {
        RunInfo run = reader.show(*selector);
        std::string url = run.url;
        for (const TaskInfo& each : run.tasks)
          if (each.name == *task) url = each.url;
        print_line("{\"run\":" + json_text(run.id) + ",\"task\":" + text_or_null(*task) +
                   (url.empty() ? "" : ",\"url\":" + json_text(url)) +
                   ",\"why\":" + json_text(text) + "}");
      } else {
        if (is_of_last) print_line(of_last_run(*task, reader.show(*selector)));
        print_line(text);
      }
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
