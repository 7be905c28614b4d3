// Files as values: read whole, written whole or not at all.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// The content of a regular file of at most `size_max` bytes.
Result<std::string> read_file(const std::string& path, uint64_t size_max = UINT64_MAX);

/// Old content or new after a crash, never half: a temporary file, synced, renamed, its folder
/// synced.
Status write_file_atomic(const std::string& path, std::string_view content, uint32_t mode = 0600);

/// A new file of these pieces under `path`, whole or not at all: who has mapped what was there
/// keeps that. What a link leads to is replaced and not the link, and what is no file (a device, a
/// pipe) is written to. With `sync` it is durable when this returns.
Status replace_file(const std::string& path, const std::vector<std::string_view>& pieces,
                    bool sync);

/// All of `bytes` to an open file; false with errno.
bool write_all(int descriptor, std::string_view bytes);

/// Makes `path` and what is missing above it, each with `mode`.
Status make_dirs(const std::string& path, uint32_t mode = 0700);

Status sync_file(const std::string& path);
/// Syncs a folder, so that what was renamed into it is found after a crash.
Status sync_dir(const std::string& path);

/// `word` as one word of a POSIX shell; plain words stay as they are.
std::string quote_shell(std::string_view word);

/// The program of this name in the folders of a PATH (null: the system's), "" where none has it.
std::string find_in_path(const std::string& name, const std::string* path);

}  // namespace flow
