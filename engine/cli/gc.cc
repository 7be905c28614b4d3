// flow gc [--keep N]: forgets old finished runs and what only they held.
#include "engine/cli/verbs.hpp"

namespace flow::cli {

namespace {
constexpr uint32_t kKeepDefault = 20;
}

void add_gc(CLI::App& app, Session& session) {
  auto keep = std::make_shared<uint32_t>(kKeepDefault);
  CLI::App* verb = add_verb(app, session, "gc", "forget old finished runs and free their space");
  verb->add_option("--keep", *keep, "number of newest finished runs to keep (default: 20)")
      ->type_name("N")
      ->check(whole_number("--keep", 0, UINT32_MAX));
  verb->callback([&session, keep] {
    session.action = [&session, keep] {
      uint64_t freed = Engine(session.engine()).gc(*keep);
      if (session.json) {
        print_line("{\"freed_bytes\":" + std::to_string(freed) + "}");
      } else {
        print_line("freed " + format_bytes(freed));
      }
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
