// Blobs as an executor reads and writes them: small ones travel in messages, large ones are files
// under objects/.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/blobs/blob_file.hpp"
#include "engine/executor/scratch_file.hpp"
#include "flow/digest.hpp"
#include "flow/value.hpp"

namespace flow {

class BlobFiles {
 public:
  explicit BlobFiles(const std::string& state_dir)
      : state_dir_(state_dir), stored_blobs_(state_dir) {}

  void add_received(const Digest& digest, std::string bytes);  // blobs that came with the order
  /// Reads a blob. A large one is mapped privately, so the caller may write to its bytes.
  Result<Bytes> read(const Digest& digest);
  /// The path of a file with this content; a small blob is written into `dir` first.
  Result<std::string> path(const Digest& digest, const std::string& dir);
  Status store(const Digest& digest, std::string_view bytes);
  /// Stores a copy of a file or folder. `left_out`: a name directly below the folder that is not
  /// part of it.
  Result<File> store_file(const std::string& path, const std::string& left_out);
  /// Stores an output of a command that has ended. A large file that belongs to the scratch folder
  /// alone is only hashed: move_outputs() moves it when all outputs are known, since another one
  /// may be a link to it. Everything else is copied.
  Result<File> store_output(const std::string& path, const std::string& scratch);
  Status move_outputs();
  // Names that were left out of stored folders.
  std::vector<std::string> take_warnings();
  std::vector<std::pair<Digest, std::string>> take_small();  // blobs to send with the report
  /// Copies of the small blobs among these that are pending for the report.
  std::vector<std::pair<Digest, std::string>> copies_of(const std::vector<Digest>& digests) const;
  void clear();
  std::string blob_path(const Digest& digest) const { return stored_blobs_.path(digest); }
  /// Removes the object if its bytes no longer have this digest, so that it is never served.
  void drop_if_damaged(const Digest& digest);

 private:
  struct PendingMove {
    std::string path, scratch;
    struct stat info;  // its state when it was hashed
    Digest digest;
  };
  /// `scratch` is "" if nothing may be moved.
  Result<File> store_path(std::string path, const std::string& left_out,
                          const std::string& scratch);
  Result<File::Entry> store_one(const std::string& path, const std::string& scratch);
  bool mark_if_present(const Digest& digest);
  Status refresh(const Digest& digest);  // updates the time of a verified file
  Status hash_in_place(const ScratchFile& file, const std::string& path, const std::string& scratch,
                       File::Entry& entry);
  Status copy_large(const std::string& path, File::Entry& entry);
  Status move(const PendingMove& output);

  const std::string state_dir_;
  VerifiedBlobs stored_blobs_;
  std::unordered_map<Digest, std::shared_ptr<const std::string>, DigestHash> received_;
  std::vector<std::pair<Digest, std::string>> small_;
  size_t small_bytes_ = 0;
  std::vector<PendingMove> moves_;     // of one attempt's outputs
  std::vector<std::string> warnings_;  // of one attempt
};

}  // namespace flow
