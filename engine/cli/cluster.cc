// flow head, flow worker: verbs of a cluster, which this build does not have.
#include "engine/cli/verbs.hpp"

namespace flow::cli {

namespace {

void add_cluster_verb(CLI::App& app, Session& session, const std::string& name,
                      const std::string& what) {
  CLI::App* verb = add_verb(app, session, name, what + " (not in this build)");
  verb->allow_extras();
  verb->callback([&session, name] {
    session.action = [name]() -> int {
      fail("this build of flow runs on one machine and has no `flow " + name +
           "`. `flow run FILE` uses all CPUs of this machine; --jobs N sets how many.");
    };
  });
}

}  // namespace

void add_head(CLI::App& app, Session& session) {
  add_cluster_verb(app, session, "head", "lead a cluster");
}
void add_worker(CLI::App& app, Session& session) {
  add_cluster_verb(app, session, "worker", "work for a cluster");
}

}  // namespace flow::cli
