// Every verb adds itself to the program; each is defined in the file of its name.
#pragma once
#include "engine/cli/display/common.hpp"

namespace flow::cli {

void add_run(CLI::App& app, Session& session);
void add_resume(CLI::App& app, Session& session);
void add_retry(CLI::App& app, Session& session);
void add_cancel(CLI::App& app, Session& session);
void add_signal(CLI::App& app, Session& session);
void add_ls(CLI::App& app, Session& session);
void add_show(CLI::App& app, Session& session);
void add_get(CLI::App& app, Session& session);
void add_logs(CLI::App& app, Session& session);
void add_why(CLI::App& app, Session& session);
void add_diff(CLI::App& app, Session& session);
void add_graph(CLI::App& app, Session& session);
void add_lint(CLI::App& app, Session& session);
void add_plan(CLI::App& app, Session& session);
void add_gc(CLI::App& app, Session& session);
void add_doctor(CLI::App& app, Session& session);
void add_init(CLI::App& app, Session& session);
void add_repl(CLI::App& app, Session& session);
void add_completion(CLI::App& app, Session& session);
void add_head(CLI::App& app, Session& session);
void add_worker(CLI::App& app, Session& session);
void add_nodes(CLI::App& app, Session& session);

/// What `flow show` prints, as text or as the JSON object.
void print_run(const RunInfo& run, bool json);

/// The whole command line; returns the exit code. What `main` calls.
int flow_main(int argc, char** argv);

}  // namespace flow::cli
