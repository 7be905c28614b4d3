// Keys, and authenticated encryption with them. The only place that uses libsodium for encryption.
// Opening returns exactly the sealed bytes or fails.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace flow {

constexpr size_t kKeyBytes = 32;
constexpr size_t kSealBytes = 17;        // a sealed frame is longer by this
constexpr size_t kSealHeaderBytes = 24;  // size of the header of a sealed stream
constexpr size_t kBulkSealBytes = 40;    // a sealed put is longer by this

/// Secret bytes, wiped by the destructor.
struct Key {
  Key() = default;
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();
  std::string_view view() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::array<uint8_t, kKeyBytes> bytes{};
};

Key random_key();
std::string random_bytes(size_t size);
void wipe(void* data, size_t size);
/// In constant time for equal sizes.
bool secrets_equal(std::string_view a, std::string_view b);

/// Keyed BLAKE2b. Each part is preceded by its length, so different lists of parts have different
/// inputs.
Key keyed_hash(const Key& key, std::initializer_list<std::string_view> parts);
/// Independent keys derived from one origin, by number.
Key subkey(const Key& key, uint64_t number);

/// The keys of one connection, one per direction.
struct LinkKeys {
  Key proof_out, proof_in, seal_out, seal_in, bulk_out, bulk_in;
};
/// Both sides derive them from the same origin; `is_first` is true on exactly one side.
LinkKeys link_keys(const Key& origin, bool is_first);

/// One side of an X25519 key exchange. An eavesdropper cannot compute the result, even with all
/// stored secrets (forward secrecy).
class KeyExchange {
 public:
  KeyExchange();
  std::string_view offered() const { return public_.view(); }
  /// Returns false for a key that is not valid or not contributory.
  bool agree(std::string_view theirs, Key& shared) const;

 private:
  Key private_, public_;
};

/// Seals the frames of one direction, in order. This is libsodium's secretstream (XChaCha20,
/// Poly1305). It manages numbers, nonces and rekeying, and each frame's tag depends on all earlier
/// frames. A changed, missing, repeated or reordered frame does not open, and no nonce can be used
/// twice.
class Sealer {
 public:
  explicit Sealer(const Key& key);
  ~Sealer();
  std::string_view header() const { return {header_.data(), header_.size()}; }
  /// A frame: `type`, which is authenticated and readable, followed by the encrypted message.
  std::string seal(uint8_t type, std::string_view message);

 private:
  struct State;
  std::array<char, kSealHeaderBytes> header_;
  std::unique_ptr<State> state_;
};

/// Opens the frames of the peer's Sealer, in their order.
class Opener {
 public:
  Opener(const Key& key, std::string_view header);
  ~Opener();
  /// Returns false for any frame other than the next one.
  bool open(std::string_view frame, std::string& message);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Seals puts independently of each other: XChaCha20-Poly1305 with a random nonce, which is long
/// enough to be unique. Host memory only. Thread-safe.
class BulkSeal {
 public:
  BulkSeal(const Key& outward, const Key& inward) : outward_(outward), inward_(inward) {}
  /// In place: `data` has `size` bytes, with room for kBulkSealBytes after them.
  void seal(uint64_t tag, char* data, size_t size) const;
  /// In place. Returns false if the bytes are not what the peer sealed for this tag.
  bool open(uint64_t tag, char* data, size_t sealed_size) const;

 private:
  Key outward_, inward_;
};

}  // namespace flow
