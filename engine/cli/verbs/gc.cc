// flow gc [--keep N]: removes old finished runs and the data that only they used.
#include <unistd.h>

#include <cerrno>

#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {
constexpr uint32_t kKeepDefault = 20;

/// gc does not create a state: a missing one is probably a wrong path.
void require_state(const VerbContext& context) {
  std::string dir = state_directory(context.engine());
  bool is_missing = access((dir + "/db").c_str(), F_OK) != 0 && errno == ENOENT;
  if (is_missing)
    fail("there is no state `" + dir +
         "`: name the folder of one with --state or FLOW_STATE. The first `flow run` creates it.");
}

}  // namespace

void add_gc(CLI::App& app, VerbContext& context) {
  auto keep = std::make_shared<uint32_t>(kKeepDefault);
  CLI::App* verb = add_verb(app, context, "gc", "remove old finished runs and free their space");
  verb->add_option("--keep", *keep, "number of newest finished runs to keep (default: 20)")
      ->type_name("N")
      ->check(whole_number("--keep", 0, UINT32_MAX));
  add_log_options(verb, context);
  verb->callback([&context, keep] {
    context.action = [&context, keep] {
      require_state(context);
      uint64_t freed = Engine(context.engine()).gc(*keep);
      if (context.json) {
        print_line("{\"freed_bytes\":" + std::to_string(freed) + "}");
      } else {
        print_line("freed " + format_bytes(freed));
      }
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
