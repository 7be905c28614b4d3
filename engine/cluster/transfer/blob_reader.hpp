// An open blob.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "flow/result.hpp"

namespace flow::cluster {

class BlobReader {
 public:
  /// Opens a regular file. `is_lent`: other programs may write to it.
  static Result<BlobReader> of_file(const std::string& path, bool is_lent);
  static BlobReader of_bytes(std::string bytes);

  uint64_t size() const { return size_; }
  /// The file's path if other programs may write to it, else "".
  const std::string& source_path() const { return source_path_; }
  /// Reads exactly `size` bytes, or returns an error. Any thread.
  Status read(uint64_t offset, char* to, size_t size) const;

 private:
  struct OpenFile;
  std::shared_ptr<const OpenFile> file_;
  std::shared_ptr<const std::string> bytes_;
  uint64_t size_ = 0;
  std::string source_path_;
};

}  // namespace flow::cluster
