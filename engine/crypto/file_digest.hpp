#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "flow/digest.hpp"
#include "flow/result.hpp"

namespace flow {

struct FileDigest {
  Digest digest;
  uint64_t size = 0;
};
/// Hashes an open file from its offset to its end. Each chunk is passed to `on_chunk`, whose error
/// ends the reading. A read error names `path`.
Result<FileDigest> sha256_descriptor(int descriptor, const std::string& path,
                                     const std::function<Status(std::string_view)>& on_chunk);
Result<FileDigest> sha256_file(const std::string& path);
/// Whether the file at `path` has this digest. Reads the whole file if the size matches.
bool holds(const std::string& path, const Digest& digest, uint64_t size);
/// Removes the file if it is readable and has another digest. Returns true if it was removed.
bool remove_unless(const std::string& path, const Digest& digest);

}  // namespace flow
