// Folders: lists the files of a folder, computes its digest, removes it.
#pragma once
#include <sys/stat.h>

#include <string>
#include <vector>

#include "flow/result.hpp"
#include "flow/value.hpp"

namespace flow {

struct FolderFile {
  std::string path;     // relative to the folder
  struct stat info {};  // of the regular file, behind all links
};

struct FolderListing {
  std::vector<FolderFile> files;    // sorted by path, bytewise
  std::vector<std::string> states;  // relative paths of flow states, which are left out
};

/// Creates the error of a failed system call: the action, the path, errno.
using SystemError = Error (*)(const char* what, const std::string& path, int code);

/// Lists the regular files of `folder` at any depth. Links are followed: their targets are part of
/// the folder. Errors (user): a link to an enclosing folder, a dangling link, any other kind of
/// file, more than 1,000,000 files or folders. `left_out`: a name directly below `folder` that is
/// not part of it.
Result<FolderListing> list_folder(const std::string& folder, const std::string& left_out,
                                  SystemError system_error);

/// The digest of a folder: that of a listing with one line per entry (digest, executable bit,
/// path). Backslashes and newlines in paths are escaped, so that different folders have different
/// listings.
Digest folder_digest(const std::vector<File::Entry>& entries);

/// Whether a folder is a state directory.
bool is_state_folder(const std::string& path);

/// "a symbolic link to `x`, which does not exist"; "" if `path` is not a broken link.
std::string broken_link(const std::string& path);

/// Whether the parent folder of `path` is `folder` or below it after all links are resolved. Both
/// must exist.
bool lies_inside(const std::string& folder, const std::string& path);

/// Removes `path` and everything below it; a missing `path` is not an error. Makes folders without
/// write permission writable first. Never follows links. A mount point below `path` is kept and is
/// an error. Continues after an error and returns the first one.
Status remove_tree(const std::string& path);

}  // namespace flow
