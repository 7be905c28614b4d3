// Keys, and what is sealed with them: the one place that knows libsodium. What is opened is what
// was sealed, or nothing.
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
constexpr size_t kSealBytes = 17;        // a sealed frame is longer by these
constexpr size_t kSealHeaderBytes = 24;  // what a stream of them begins with
constexpr size_t kBulkSealBytes = 40;    // a sealed put is longer by these

/// Bytes that nobody else may know, wiped when they go.
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
/// In a time that says nothing of where they differ.
bool secrets_equal(std::string_view a, std::string_view b);

/// BLAKE2b under a key; each part goes in behind its length, so no two lists of parts are alike.
Key keyed_hash(const Key& key, std::initializer_list<std::string_view> parts);
/// Keys of one origin that say nothing of each other, by number.
Key subkey(const Key& key, uint64_t number);

/// The keys of one link, told by direction from one side.
struct LinkKeys {
  Key proof_out, proof_in, seal_out, seal_in, bulk_out, bulk_in;
};
/// Both sides make them of one origin; `is_first` is true on one of them alone.
LinkKeys link_keys(const Key& origin, bool is_first);

/// One side of an X25519 exchange: what both get nobody can compute who only listened, not even
/// with every secret that is kept.
class KeyExchange {
 public:
  KeyExchange();
  std::string_view offered() const { return public_.view(); }
  /// False for what is no key of a peer that can be trusted to have chosen one.
  bool agree(std::string_view theirs, Key& shared) const;

 private:
  Key private_, public_;
};

/// Seals frames of one direction, one behind the other. This is libsodium's secretstream
/// (XChaCha20, Poly1305): number, nonce and rekeying are its own, and each frame's seal hangs on
/// all before it. So a frame that is changed, left out, repeated or moved does not open, and we
/// have no nonce that could be used twice.
class Sealer {
 public:
  explicit Sealer(const Key& key);
  ~Sealer();
  std::string_view header() const { return {header_.data(), header_.size()}; }
  /// A frame: `type`, which is sealed with it and seen by everybody, and then the sealed message.
  std::string seal(uint8_t type, std::string_view message);

 private:
  struct State;
  std::array<char, kSealHeaderBytes> header_;
  std::unique_ptr<State> state_;
};

/// Opens what the peer's Sealer made, in its order.
class Opener {
 public:
  Opener(const Key& key, std::string_view header);
  ~Opener();
  /// False for any frame but the next one.
  bool open(std::string_view frame, std::string& message);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Seals puts, each by itself, for whoever wants them secret: XChaCha20-Poly1305 with a random
/// nonce, which is long enough never to come twice. Host memory only. Any thread.
class BulkSeal {
 public:
  BulkSeal(const Key& outward, const Key& inward) : outward_(outward), inward_(inward) {}
  /// In place: `data` has `size` bytes and room for kBulkSealBytes behind them.
  void seal(uint64_t tag, char* data, size_t size) const;
  /// In place, of all that came; false where it is not what the peer sealed for that tag.
  bool open(uint64_t tag, char* data, size_t sealed_size) const;

 private:
  Key outward_, inward_;
};

}  // namespace flow
