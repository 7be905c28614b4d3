// Content as an executor reads and writes it: small pieces travel in messages, large ones are files
// under objects/.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flow/digest.hpp"
#include "flow/value.hpp"

namespace flow {

class BlobFiles {
 public:
  explicit BlobFiles(std::string state_dir) : state_dir_(std::move(state_dir)) {}

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
  std::string object_path(const Digest& digest) const;
  /// An object that does not hold its content any more is removed, so that nobody reads it as such.
  void drop_if_damaged(const Digest& digest);

 private:
  Result<File::Entry> store_one(const std::string& path, bool may_move);
  Status store_large(const std::string& path, bool may_move, File::Entry& entry);
  bool has_object(const Digest& digest, uint64_t size) const;
  bool is_sound(const Digest& digest);

  using Stamp = std::array<int64_t, 6>;  // inode, size, times of change
  /// Of the object as it is now; false where there is none.
  bool stamp_of(const Digest& digest, Stamp& out) const;
  bool is_known_sound(const Digest& digest, const Stamp& now) const;
  void note_sound(const Digest& digest, const Stamp& now);

  std::string state_dir_;
  std::unordered_map<Digest, Stamp, DigestHash> sound_;  // objects read and found good
  std::unordered_map<Digest, std::shared_ptr<const std::string>, DigestHash> given_;
  std::vector<std::pair<Digest, std::string>> small_;
  size_t small_bytes_ = 0;
};

}  // namespace flow
