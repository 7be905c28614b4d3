// Folders as trees: list the files of one as a value, remove one.
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

/// Makes an error of a failed system call: what was tried, on which path, errno.
using SystemError = Error (*)(const char* what, const std::string& path, int code);

/// The regular files of `folder`, at any depth. Links to files and to folders are followed: what
/// they lead to is part of the folder. A link that leads to a folder around it, a dangling link and
/// any other kind of file are errors of kind user, and so is a folder with more than 1,000,000
/// files or folders. `left_out` is a name directly below `folder` that is not part of it.
Result<FolderListing> list_folder(const std::string& folder, const std::string& left_out,
                                  SystemError system_error);

/// The digest of a folder: of one line per entry with content digest, executable bit and path. A
/// backslash and a newline in a path are escaped, so that each listing is one folder's only.
Digest folder_digest(const std::vector<File::Entry>& entries);

/// Whether a folder is the state of a flow.
bool is_state_folder(const std::string& path);

/// "a symbolic link to `x`, which does not exist", or "" where `path` is not a broken link.
std::string broken_link(const std::string& path);

/// Whether the folder that `path` lies in is `folder` or below it once all links are resolved. Both
/// must exist.
bool lies_inside(const std::string& folder, const std::string& path);

/// Removes `path` and everything below it; a missing `path` is not an error. Folders without write
/// permission are made writable first. Links are removed and never followed, and what is mounted
/// somewhere in it is kept, which is an error. Continues after an error and returns the first one.
Status remove_tree(const std::string& path);

}  // namespace flow
