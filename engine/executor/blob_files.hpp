// Content as an executor reads and writes it: small pieces travel in messages, large ones are files
// under objects/.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/objects.hpp"
#include "flow/digest.hpp"
#include "flow/value.hpp"

namespace flow {

class BlobFiles {
 public:
  explicit BlobFiles(const std::string& state_dir) : state_dir_(state_dir), objects_(state_dir) {}

  void give(const Digest& digest, std::string bytes);  // came with the order
  /// A large piece is mapped: its bytes are the caller's own.
  Result<Bytes> read(const Digest& digest);
  /// A path with this content; a small piece is written into `dir` first.
  Result<std::string> path(const Digest& digest, const std::string& dir);
  Status store(const Digest& digest, std::string_view bytes);
  /// Takes a file or folder in. `may_move`: nobody writes to it or needs it any more.
  Result<File> store_file(const std::string& path, bool may_move);
  std::vector<std::pair<Digest, std::string>> take_small();  // what is to go with the report
  /// The small ones of these that are still to go with the report; they stay.
  std::vector<std::pair<Digest, std::string>> copies_of(const std::vector<Digest>& digests) const;
  void clear();
  std::string object_path(const Digest& digest) const { return objects_.path(digest); }
  /// An object that does not hold its content any more is removed, so that nobody reads it as such.
  void drop_if_damaged(const Digest& digest);

 private:
  Result<File::Entry> store_one(const std::string& path, bool may_move);
  bool keep_what_is_there(const Digest& digest);
  Status store_large(const std::string& path, bool may_move, File::Entry& entry);

  const std::string state_dir_;
  SoundObjects objects_;
  std::unordered_map<Digest, std::shared_ptr<const std::string>, DigestHash> given_;
  std::vector<std::pair<Digest, std::string>> small_;
  size_t small_bytes_ = 0;
};

}  // namespace flow
