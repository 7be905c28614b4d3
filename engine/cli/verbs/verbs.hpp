// Every verb adds itself to the program and is defined in the file of its name.
#pragma once
#include "engine/cli/display/common.hpp"

namespace flow::cli {

void add_run(CLI::App& app, VerbContext& context);
void add_resume(CLI::App& app, VerbContext& context);
void add_retry(CLI::App& app, VerbContext& context);
void add_cancel(CLI::App& app, VerbContext& context);
void add_signal(CLI::App& app, VerbContext& context);
void add_ls(CLI::App& app, VerbContext& context);
void add_show(CLI::App& app, VerbContext& context);
void add_get(CLI::App& app, VerbContext& context);
void add_logs(CLI::App& app, VerbContext& context);
void add_why(CLI::App& app, VerbContext& context);
void add_diff(CLI::App& app, VerbContext& context);
void add_graph(CLI::App& app, VerbContext& context);
void add_lint(CLI::App& app, VerbContext& context);
void add_plan(CLI::App& app, VerbContext& context);
void add_gc(CLI::App& app, VerbContext& context);
void add_doctor(CLI::App& app, VerbContext& context);
void add_init(CLI::App& app, VerbContext& context);
void add_repl(CLI::App& app, VerbContext& context);
void add_completion(CLI::App& app, VerbContext& context);
void add_head(CLI::App& app, VerbContext& context);
void add_worker(CLI::App& app, VerbContext& context);
void add_nodes(CLI::App& app, VerbContext& context);

/// What `flow show` prints, as text or as the JSON object.
void print_run(const RunInfo& run, bool json);

/// Runs a whole command line and returns the exit code. Called by `main`.
int flow_main(int argc, char** argv);

}  // namespace flow::cli
