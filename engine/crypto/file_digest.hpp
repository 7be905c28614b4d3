#pragma once
#include <cstdint>
#include <string>

#include "flow/digest.hpp"
#include "flow/result.hpp"

namespace flow {

struct FileDigest {
  Digest digest;
  uint64_t size = 0;
};
Result<FileDigest> sha256_file(const std::string& path);
/// Whether the file at `path` is this content. Reads it whole where the size is right.
bool holds(const std::string& path, const Digest& digest, uint64_t size);
/// Removes the file where it can be read and is other content; true where it did.
bool remove_unless(const std::string& path, const Digest& digest);

}  // namespace flow
