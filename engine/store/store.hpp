// The durable state: one RocksDB, and large blobs as files under objects/. An implementation in
// memory serves tests.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/core.hpp"

namespace flow {

enum class Family : uint8_t { meta, runs, journal, snapshots, cache, blobs, logs, kv, metrics };
constexpr size_t kInlineBlobMax = 64 * 1024;  // larger blobs are files under objects/

/// A set of writes that is committed atomically.
struct Batch {
  struct Write {
    Family family;
    std::string key;
    std::optional<std::string> value;  // nullopt deletes
  };
  std::vector<Write> writes;
  void put(Family family, std::string key, std::string value) {
    writes.push_back({family, std::move(key), std::move(value)});
  }
  void erase(Family family, std::string key) {
    writes.push_back({family, std::move(key), std::nullopt});
  }
};

/// The database of a state. Thread-safe. A failed commit is final: the engine stops with its error
/// (exit code 4), which names path, errno, free space and the last committed sequence number.
class Store {
 public:
  virtual ~Store() = default;
  virtual Status commit(Batch batch, bool sync = true) = 0;
  virtual Result<std::optional<std::string>> get(Family family, std::string_view key) const = 0;
  /// For each key, in order, its row or nothing.
  virtual Result<std::vector<std::optional<std::string>>> get_many(
      Family family, const std::vector<std::string_view>& keys) const = 0;
  /// Calls `visit` in key order for every key with `prefix` from `from` on, until it returns false.
  virtual Status scan(
      Family family, std::string_view prefix, std::string_view from,
      const std::function<bool(std::string_view key, std::string_view value)>& visit) const = 0;
  virtual uint64_t bytes() const = 0;  // the state's size on disk
  /// Of a secondary: takes over what the writer has written since. Others are up to date.
  virtual Status refresh() { return {}; }
};

struct StoreOptions {
  // A secondary next to a live writer: without the lock, with its own folder.
  bool read_only = false;
};
/// Opens or creates `dir` (0700). Errors: another user's state, a newer version, a wrong checksum
/// (file and offset), no space.
Result<std::unique_ptr<Store>> open_store(const std::string& dir, const StoreOptions& options = {});
std::unique_ptr<Store> make_memory_store();

class NewBlobFile;

/// The blobs of a state: small ones in the column family `blobs` (through a Batch), large ones as
/// files objects/ab/cdef…, which are durable when put returns.
class Blobs {
 public:
  Blobs(Store& store, std::string dir);
  const std::string& dir() const { return dir_; }  // the folder of objects/
  /// Adds a small blob to `batch`, or writes a large one to its file. Returns the digest.
  Result<Digest> put(std::string_view bytes, Batch& batch);
  Result<Digest> put_file(const std::string& path, bool may_move);  // always a file under objects/
  Result<std::string> get(const Digest& digest) const;              // verified against the digest
  bool has(const Digest& digest) const;
  /// Whether the blob exists with this size.
  bool has(const Digest& digest, uint64_t size) const;
  /// For a blob that get() did not return: OK if it is lost or damaged, an error if it may exist
  /// but cannot be read now.
  Status check_unread(const Digest& digest) const;
  /// Whether the blob is certainly missing. With a size, a file of another size does not count.
  bool is_gone(const Digest& digest, std::optional<uint64_t> size) const;
  /// Removes a file under objects/ whose content does not match its name. Returns whether it did.
  bool drop_if_damaged(const Digest& digest);
  /// A large blob that is written to its file in pieces.
  class Writer {
   public:
    explicit Writer(const Blobs& blobs);
    ~Writer();
    void add(std::string_view piece);
    /// The first error of all, or the digest of the blob, which is durable.
    Result<Digest> finish();

   private:
    const Blobs& blobs_;
    std::unique_ptr<NewBlobFile> file_;
    Sha256 hash_;
    uint64_t size_ = 0;
    Status written_;
  };
  std::string path_of(const Digest& digest) const;  // objects/ab/cdef…, whether it exists or not
  /// A readable path; writes a small blob to objects/ first.
  Result<std::string> materialize(const Digest& digest);

 private:
  Error unwritten(const Error& error) const;
  Status write_blob_file(const Digest& digest, std::string_view bytes) const;
  /// Makes `file` the blob, unless an undamaged file of it exists.
  Status publish(NewBlobFile& file, const Digest& digest, uint64_t size) const;

  Store& store_;
  std::string dir_;
};

// ---- journal
// ------------------------------------------------------------------------------------------------

using FindPlan = std::function<std::shared_ptr<const Plan>(const Digest&)>;
using FindFragment = std::function<std::shared_ptr<const PlanFragment>(const Digest&)>;
FindPlan find_plan_in(const Blobs& blobs);  // which must outlive it
FindFragment find_fragment_in(const Blobs& blobs);

/// The records of one commit as one value of the journal: a Batch of journal.proto with the newest
/// schema (journal_schema.hpp), then its CRC-32C.
std::string encode_records(const std::vector<core::Record>& records);
/// Reads a batch of any schema. Total: bytes that are damaged, or of a newer schema, are an error.
Result<std::vector<core::Record>> decode_records(std::string_view bytes, const FindPlan& plan,
                                                 const FindFragment& fragment);
std::string encode_snapshot(const core::State& state);
/// About the size of a snapshot of this state when all units of its runs have ended.
uint64_t expected_snapshot_bytes(const core::State& state);
/// Gets the next piece of an encoding, and the size of all pieces.
using TakePiece = std::function<void(std::string_view piece, size_t total)>;
/// The snapshot of a state with only this run of `state`, and the names of the workers that it ran
/// on.
void encode_snapshot_of(const core::State& state, const core::Run& run, const TakePiece& take);
Result<core::State> decode_snapshot(std::string_view bytes, const FindPlan& plan,
                                    const FindFragment& fragment);

/// Error if a newer flow wrote a snapshot or a batch of the journal. Decodes nothing else.
Status check_schemas(const Store& store);
/// Rebuilds the state: the newest snapshot, then every later record, with its commands dropped.
Result<core::State> recover(const Store& store, const Blobs& blobs);
/// Applies the records after those that `state` has. False: a newer snapshot may have replaced some
/// of them, so the state must be recovered again.
Result<bool> apply_new_records(const Store& store, const Blobs& blobs, core::State& state);

}  // namespace flow
