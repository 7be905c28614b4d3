// Memory-mapped files: pages are read on first access, and writes to them do not reach the file.
#pragma once
#include <string>

#include "flow/bytes.hpp"
#include "flow/result.hpp"

namespace flow {

/// Maps a regular file privately (copy on write). Each call creates a separate mapping, which the
/// caller may modify. If the file is truncated later, access to the missing part ends the process
/// (SIGBUS): map only files that are replaced atomically, as flow's own are.
Result<Bytes> map_file(const std::string& path);

}  // namespace flow
