// --detach: a run continues after the command that started it has ended, in a background process or
// at the head that writes the state.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "engine/cli/display/run_options.hpp"
#include "engine/cli/display/watch.hpp"

namespace flow::cli {

// ---- the command that the user started

/// With --detach: executes this command line in the background, and returns its exit code, 0 once
/// the services of the run are ready. Nothing: this process executes the run. If a head has the
/// run's state, that is with --detach too, and sets options.detached.
std::optional<int> run_in_background(const VerbContext& context, const RunArguments& arguments,
                                     std::unique_ptr<Interrupts>& interrupts, RunOptions& options);
/// Starts a background process that resumes the orphaned runs of the state, if there are any, and
/// blocks until it has resumed them. This process is then its client, and may end first.
void keep_left_runs(const VerbContext& context, const RunArguments& arguments);
/// Prints where a run that a head keeps is served.
void print_left(const VerbContext& context, const RunInfo& run);
/// Prints that this run serves its name as before, because the canary of another one was ended. A
/// process in the background leaves that to the command.
void print_kept(const VerbContext& context, const RunInfo& run);

// ---- the command in the background; in any other process these do nothing

/// Call it before anything is printed.
void take_background();
bool is_background();
/// Sends the output to STATE/detached.log. The state exists.
void enter_background(const VerbContext& context);
void report_start(const RunInfo& run);
void report_services(const RunInfo& run);
void report_end(int exit_code);

// ---- both

/// Whether nobody needs to wait for the services of the run: it serves, or its services are up
/// while other tasks run, or it has none. A version that is still taking over the traffic of
/// another one is not ready.
bool is_ready(const RunInfo& run);

}  // namespace flow::cli
