// Process-wide settings of flow's own programs. A host program that embeds the engine makes these
// decisions itself.
#pragma once
#include <functional>
#include <string>

namespace flow {

/// Raises the soft limit on open files to the hard limit. Processes that the engine starts get the
/// soft limit that this process was started with.
void raise_open_files();
/// Restores the original soft limit; called before exec.
void restore_open_files();

/// Calls `work` and returns its result. If the stack limit (`ulimit -s`) is below 2 MiB, `work`
/// runs on a thread with a stack of 8 MiB, and later threads get the same size. Child processes
/// keep the limit. Call this before any other thread starts.
int call_with_stack(const std::function<int()>& work);

/// Interrupts every current and later Engine::get and Reader::get of this process at the next MiB:
/// it removes the incomplete file, keeps complete ones, and throws Failed (interrupted). Safe to
/// call in a signal handler.
void stop_copies();

/// From now on an uncaught exception on any thread prints one sentence to stderr and ends the
/// process with `exit_code` instead of SIGABRT.
void end_on_uncaught(int exit_code);

/// Describes the exception that is being handled: what failed and what to do. Call this in a
/// `catch` block.
std::string exception_text();

}  // namespace flow
