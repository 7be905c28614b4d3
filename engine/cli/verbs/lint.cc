// flow lint FILE: finds places where a script uses a handle as a plain value.
#include "engine/cli/display/run_options.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

void add_lint(CLI::App& app, VerbContext& context) {
  auto file = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "lint", "warn about handles used as plain values");
  verb->add_option("file", *file, "a script, or a folder with a pipeline.lua")
      ->type_name("FILE|DIR")
      ->required();
  verb->callback([&context, file] {
    context.action = [&context, file] {
      for (const std::string& warning : lint(script_path(*file))) {
        print_line(context.json ? "{\"warning\":" + json_text(warning) + "}" : warning);
      }
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
