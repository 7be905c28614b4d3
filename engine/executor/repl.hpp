// flow-executor --repl: a prompt that evaluates Lua in the sandbox of a task.
#pragma once

namespace flow {

/// Reads lines from stdin until end of file; returns the exit code.
int run_repl();

}  // namespace flow
