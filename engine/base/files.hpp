// Reads whole files and writes files atomically.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// The content of a regular file of at most `size_max` bytes.
Result<std::string> read_file(const std::string& path, uint64_t size_max = UINT64_MAX);

/// After a crash the file has the old content or the new: writes a temporary file, syncs and
/// renames it, and syncs the folder.
Status write_file_atomic(const std::string& path, std::string_view content, uint32_t mode = 0600);

/// Atomically replaces the file at `path` by these pieces; a process that has mapped the old file
/// keeps it. Follows a link and replaces its target; writes into a device or a pipe. With `sync`
/// the file is durable when this returns.
Status replace_file(const std::string& path, const std::vector<std::string_view>& pieces,
                    bool sync);

/// Writes all of `bytes` to an open file. Returns false and sets errno on failure.
bool write_all(int descriptor, std::string_view bytes);

/// Creates `path` and its missing parents, each with `mode`.
Status make_dirs(const std::string& path, uint32_t mode = 0700);

Status sync_file(const std::string& path);
/// Syncs a folder, so that renames into it survive a crash.
Status sync_dir(const std::string& path);

/// `word` as one word of a POSIX shell; plain words stay as they are.
std::string quote_shell(std::string_view word);

/// Path of the program in the folders of a PATH (null: the system's); "" if none has it.
std::string find_in_path(const std::string& name, const std::string* path);

}  // namespace flow
