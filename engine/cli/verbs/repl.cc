// flow repl: a prompt inside a pipeline script's sandbox. The executor runs it: this program loads
// no user code.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/cli/verbs/verbs.hpp"
#include "flow/process.hpp"

namespace flow::cli {

void add_repl(CLI::App& app, VerbContext& context) {
  CLI::App* verb = add_verb(app, context, "repl", "try Lua as a pipeline script sees it");
  verb->callback([&context] {
    context.action = [&context]() -> int {
      std::string program = executor_program(context.engine());
      flush_output();
      restore_open_files();
      execl(program.c_str(), "flow-executor", "--repl", static_cast<char*>(nullptr));
      fail_environment("cannot start `" + program + "`: " + std::strerror(errno));
    };
  });
}

}  // namespace flow::cli
