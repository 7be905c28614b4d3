// flow-executor --repl: a prompt that evaluates Lua as a task of a script sees it.
#pragma once

namespace flow {

/// Reads lines from stdin until its end; returns the exit code.
int run_repl();

}  // namespace flow
