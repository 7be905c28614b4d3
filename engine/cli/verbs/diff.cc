// flow diff RUN RUN: differences between two runs, task by task.
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

void add_diff(CLI::App& app, VerbContext& context) {
  auto before = std::make_shared<std::string>();
  auto after = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "diff", "show the differences between two runs");
  verb->add_option("before", *before, "the earlier run")->type_name("RUN")->required();
  verb->add_option("after", *after, "the later run")->type_name("RUN")->required();
  auto verbose = std::make_shared<bool>(false);
  add_verbose_option(verb, *verbose);
  verb->callback([&context, before, after, verbose] {
    context.action = [&context, before, after, verbose] {
      Reader reader(context.engine());
      std::string text = reader.diff(*before, *after, {.each_task = *verbose});
      if (!*verbose) text = with_short_digests(text);
      while (!text.empty() && text.back() == '\n') text.pop_back();
      if (context.json) {
        print_line("{\"before\":" + json_text(reader.show(*before).id) + ",\"after\":" +
                   json_text(reader.show(*after).id) + ",\"diff\":" + json_text(text) + "}");
      } else {
        print_line(text);
      }
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
