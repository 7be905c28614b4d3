// The limit on open files of processes that the engine starts.
#pragma once
#include <sys/types.h>

namespace flow {

/// Gives `child` the soft limit on open files that this process had before raise_open_files.
void restore_open_files(pid_t child);

}  // namespace flow
