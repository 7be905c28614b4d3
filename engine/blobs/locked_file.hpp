// Temporary files and folders that are locked (flock) by the process that made them. The kernel
// releases the lock when that process ends, so an unlocked one is abandoned and can be removed.
#pragma once
#include <string>

namespace flow {

/// Locks an open file or folder. The lock lasts until the descriptor and all its duplicates are
/// closed. Returns false if another process removed it before the lock was taken: the caller must
/// then create a new one. On a file system without locks it returns true without a lock;
/// remove_abandoned() does not remove such a file.
bool lock_file(int descriptor);
/// Removes the file, or the folder with its contents, unless it is locked. Does not follow links.
/// Returns true if it is locked; false if it was removed, or if it could not be opened or locked.
bool remove_abandoned(const std::string& path);

}  // namespace flow
