// Temporary files that tell whether the process which made them still lives: it holds a lock on
// each, which the kernel drops with it.
#pragma once
#include <string>

namespace flow {

/// Holds the open file or folder until its descriptor and all duplicates are closed. False where
/// another process has just taken it for abandoned and removed it: make another one. Where the file
/// system has no such locks it is not held, and remove_abandoned() leaves it alone.
bool hold_file(int descriptor);
/// Removes the file, or the folder with all that is in it, unless it is held. Follows no link. True
/// where it is held.
bool remove_abandoned(const std::string& path);

}  // namespace flow
