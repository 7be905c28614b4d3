// flow get RUN [PART] [-o DIR]: prints a result as JSON or copies it out as files.
#include <unistd.h>

#include "engine/cli/display/signals.hpp"
#include "engine/cli/verbs/verbs.hpp"
#include "flow/process.hpp"

namespace flow::cli {

void add_get(CLI::App& app, VerbContext& context) {
  auto selector = std::make_shared<std::string>();
  auto part = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "get", "copy a run's result to a folder, or print it");
  add_run_argument(verb, *selector);
  verb->add_option("part", *part, "a part of the result, e.g. report.files[1]")->type_name("PART");
  verb->add_option("-o,--out", *out,
                   "folder or s3://BUCKET/PREFIX to copy files to (default: print the value)")
      ->type_name("DIR");
  verb->callback([&context, selector, part, out] {
    context.action = [&context, selector, part, out] {
      Reader reader(context.engine());
      if (out->empty()) {
        print_line(to_json(reader.value(*selector, *part), context.json ? -1 : 2));
        return int{kDone};
      }
      Signals signals([](int count) {
        if (count > 1) _exit(kInterrupted);
        stop_copies();
      });
      for (const std::string& path : reader.get(*selector, *part, *out)) {
        print_line(context.json ? "{\"path\":" + json_text(path) + "}" : path);
      }
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
