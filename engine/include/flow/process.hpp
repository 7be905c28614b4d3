// What a program that is flow and nothing else sets for its own process. A host that embeds the
// engine decides this itself.
#pragma once
#include <string>

namespace flow {

/// Raises the soft limit on open files to the hard limit. Processes that the engine starts get the
/// soft limit that this process was started with.
void raise_open_files();
/// Takes that back, before exec.
void restore_open_files();

/// An exception that nothing catches, on any thread, prints one sentence to stderr and ends the
/// process with `exit_code` instead of SIGABRT.
void end_on_uncaught(int exit_code);

/// A sentence on the exception that is being handled: what failed and what to do. Call it in a
/// `catch` block.
std::string exception_text();

}  // namespace flow
