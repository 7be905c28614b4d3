// The verbs of the program `flow`. add_X() adds the verb X to `app` and is defined in X.cc (worker
// and nodes: cluster.cc; import: export.cc; retry: resume.cc; serve, deploy, rollback and stop:
// services.cc). Parsing a command line sets `context.action`, which executes the verb and returns
// the exit code. `context` must outlive `app`.
#pragma once
#include "engine/cli/display/common.hpp"

namespace flow::cli {

void add_run(CLI::App& app, VerbContext& context);
void add_resume(CLI::App& app, VerbContext& context);
void add_retry(CLI::App& app, VerbContext& context);
void add_serve(CLI::App& app, VerbContext& context);
void add_deploy(CLI::App& app, VerbContext& context);
void add_rollback(CLI::App& app, VerbContext& context);
void add_stop(CLI::App& app, VerbContext& context);
void add_cancel(CLI::App& app, VerbContext& context);
void add_signal(CLI::App& app, VerbContext& context);
void add_ls(CLI::App& app, VerbContext& context);
void add_services(CLI::App& app, VerbContext& context);
void add_show(CLI::App& app, VerbContext& context);
void add_get(CLI::App& app, VerbContext& context);
void add_logs(CLI::App& app, VerbContext& context);
void add_metrics(CLI::App& app, VerbContext& context);
void add_compare(CLI::App& app, VerbContext& context);
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
void add_manual(CLI::App& app, VerbContext& context);
void add_head(CLI::App& app, VerbContext& context);
void add_worker(CLI::App& app, VerbContext& context);
void add_nodes(CLI::App& app, VerbContext& context);

/// Prints a run and its tasks to stdout as `flow show` does: as text, or as one JSON object.
/// `with_usage`: the text also shows what each task used.
void print_run(const RunInfo& run, bool json, bool with_usage = false);

/// Parses and executes a command line and returns the exit code. Called once, by `main`: it
/// installs handlers of signals, and after an unexpected exception it ends the process.
int flow_main(int argc, char** argv);

}  // namespace flow::cli
