// What a program that is flow and nothing else sets for its own process. A host that embeds the
// engine decides this itself.
#pragma once
#include <functional>
#include <string>

namespace flow {

/// Raises the soft limit on open files to the hard limit. Processes that the engine starts get the
/// soft limit that this process was started with.
void raise_open_files();
/// Takes that back, before exec.
void restore_open_files();

/// Calls `work` and returns its result. Under a limit on the stack (`ulimit -s`) of less than 2 MiB
/// it calls it on a thread with 8 MiB, and threads that start later get as much. Processes that the
/// engine starts keep the limit. Call it before any other thread runs.
int call_with_stack(const std::function<int()>& work);

/// Each Engine::get and Reader::get of this process, now and later, ends before the next piece of
/// 1 MiB: it removes the file that is not whole, leaves those that are, and throws Failed
/// (interrupted). May be called in a signal handler.
void stop_copies();

/// An exception that nothing catches, on any thread, prints one sentence to stderr and ends the
/// process with `exit_code` instead of SIGABRT.
void end_on_uncaught(int exit_code);

/// A sentence on the exception that is being handled: what failed and what to do. Call it in a
/// `catch` block.
std::string exception_text();

}  // namespace flow
