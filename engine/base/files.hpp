// Reading of whole files, atomic writes, quoting for a shell, and lookup in PATH.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// Reads the whole file at `path`, which may be one of /proc. Returns an error of kind
/// `environment` if it is a folder, cannot be read, or has more than `size_max` bytes.
Result<std::string> read_file(const std::string& path, uint64_t size_max = UINT64_MAX);

/// Replaces the file at `path` atomically and durably: writes a temporary file with `mode` (less
/// the umask) in the same folder, syncs it, renames it to `path`, and syncs the folder. After a
/// crash the file has the old content or the new. A symbolic link at `path` is replaced, not
/// followed.
Status write_file_atomic(const std::string& path, std::string_view content, uint32_t mode = 0600);

/// Atomically replaces the file at `path` by these pieces. An existing file keeps its mode; a new
/// one gets 0666 less the umask. A process that has mapped the old file keeps the old content.
/// Follows a link to an existing file and replaces a dangling one. Fails if the existing file is
/// not writable. With `sync` the file is durable when this returns; without, a crash of the machine
/// may leave it incomplete. A device or a pipe is written in place and not synced.
Status replace_file(const std::string& path, const std::vector<std::string_view>& pieces,
                    bool sync);

/// Writes all of `bytes` to a blocking descriptor. On failure it returns false and sets errno; some
/// of the bytes may have been written.
bool write_all(int descriptor, std::string_view bytes);

/// Creates `path` and its missing parents, each with `mode` less the umask. Existing folders keep
/// theirs.
Status make_dirs(const std::string& path, uint32_t mode = 0700);

/// Syncs an existing file with fsync().
Status sync_file(const std::string& path);
/// Syncs a folder, so that renames into it survive a crash.
Status sync_dir(const std::string& path);

/// `word` as one word of a POSIX shell; plain words stay as they are.
std::string quote_shell(std::string_view word);

/// Returns the absolute path of the first executable file `name` in the folders of `path`, a value
/// of PATH, or "" if there is none. Relative folders are skipped. null: the folders
/// /usr/local/bin, /usr/bin and /bin.
std::string find_in_path(const std::string& name, const std::string* path);

}  // namespace flow
