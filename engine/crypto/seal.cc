#include "engine/crypto/seal.hpp"

#include <sodium.h>

#include "flow/result.hpp"

namespace flow {

namespace {

static_assert(kKeyBytes == crypto_secretstream_xchacha20poly1305_KEYBYTES);
static_assert(kKeyBytes == crypto_aead_xchacha20poly1305_ietf_KEYBYTES);
static_assert(kKeyBytes == crypto_scalarmult_BYTES && kKeyBytes == crypto_scalarmult_SCALARBYTES);
static_assert(kKeyBytes == crypto_kdf_KEYBYTES && kKeyBytes >= crypto_generichash_KEYBYTES_MIN);
static_assert(kSealBytes == crypto_secretstream_xchacha20poly1305_ABYTES);
static_assert(kSealHeaderBytes == crypto_secretstream_xchacha20poly1305_HEADERBYTES);

constexpr size_t kNonceBytes = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
constexpr size_t kTagBytes = crypto_aead_xchacha20poly1305_ietf_ABYTES;
static_assert(kBulkSealBytes == kNonceBytes + kTagBytes);

const uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}
uint8_t* bytes_of(char* data) { return reinterpret_cast<uint8_t*>(data); }

// Selects the code for this CPU and opens the system's random source.
void prepare() {
  static const bool ready = sodium_init() >= 0;
  FLOW_CHECK(ready);
}

using NumberBytes = std::array<uint8_t, 8>;

NumberBytes number_bytes(uint64_t number) {
  NumberBytes bytes;
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(number >> (8 * i));
  return bytes;
}

}  // namespace

Key::~Key() { sodium_memzero(bytes.data(), bytes.size()); }

Key random_key() {
  prepare();
  Key key;
  randombytes_buf(key.bytes.data(), key.bytes.size());
  return key;
}

std::string random_bytes(size_t size) {
  prepare();
  std::string bytes(size, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

void wipe(void* data, size_t size) { sodium_memzero(data, size); }

bool secrets_equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Key keyed_hash(const Key& key, std::initializer_list<std::string_view> parts) {
  prepare();
  crypto_generichash_state state;
  Key out;
  crypto_generichash_init(&state, key.bytes.data(), kKeyBytes, kKeyBytes);
  for (std::string_view part : parts) {
    NumberBytes length = number_bytes(part.size());
    crypto_generichash_update(&state, length.data(), length.size());
    crypto_generichash_update(&state, bytes_of(part), part.size());
  }
  crypto_generichash_final(&state, out.bytes.data(), kKeyBytes);
  sodium_memzero(&state, sizeof state);
  return out;
}

Key subkey(const Key& key, uint64_t number) {
  Key out;
  crypto_kdf_derive_from_key(out.bytes.data(), kKeyBytes, number, "flowlink", key.bytes.data());
  return out;
}

// Key numbers of the first side are odd, those of the other side even.
LinkKeys link_keys(const Key& origin, bool is_first) {
  uint64_t out = is_first ? 0 : 1, in = 1 - out;
  return {subkey(origin, 1 + out), subkey(origin, 1 + in),  subkey(origin, 3 + out),
          subkey(origin, 3 + in),  subkey(origin, 5 + out), subkey(origin, 5 + in)};
}

KeyExchange::KeyExchange() : private_(random_key()) {
  crypto_scalarmult_base(public_.bytes.data(), private_.bytes.data());
}

bool KeyExchange::agree(std::string_view theirs, Key& shared) const {
  return theirs.size() == kKeyBytes &&
         crypto_scalarmult(shared.bytes.data(), private_.bytes.data(), bytes_of(theirs)) == 0;
}

struct Sealer::State {
  crypto_secretstream_xchacha20poly1305_state stream;
  ~State() { sodium_memzero(&stream, sizeof stream); }
};

Sealer::Sealer(const Key& key) : state_(std::make_unique<State>()) {
  prepare();
  crypto_secretstream_xchacha20poly1305_init_push(&state_->stream, bytes_of(header_.data()),
                                                  key.bytes.data());
}
Sealer::~Sealer() = default;

std::string Sealer::seal(uint8_t type, std::string_view message) {
  std::string frame(1 + message.size() + kSealBytes, '\0');
  frame[0] = static_cast<char>(type);
  crypto_secretstream_xchacha20poly1305_push(&state_->stream, bytes_of(frame.data() + 1), nullptr,
                                             bytes_of(message), message.size(), &type, 1,
                                             crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
  return frame;
}

struct Opener::State {
  crypto_secretstream_xchacha20poly1305_state stream;
  ~State() { sodium_memzero(&stream, sizeof stream); }
};

Opener::Opener(const Key& key, std::string_view header) : state_(std::make_unique<State>()) {
  FLOW_CHECK(header.size() == kSealHeaderBytes);
  crypto_secretstream_xchacha20poly1305_init_pull(&state_->stream, bytes_of(header),
                                                  key.bytes.data());
}
Opener::~Opener() = default;

bool Opener::open(std::string_view frame, std::string& message) {
  if (frame.size() < 1 + kSealBytes) return false;
  message.resize(frame.size() - 1 - kSealBytes);
  uint8_t tag = 0;
  return crypto_secretstream_xchacha20poly1305_pull(&state_->stream, bytes_of(message.data()),
                                                    nullptr, &tag, bytes_of(frame) + 1,
                                                    frame.size() - 1, bytes_of(frame), 1) == 0;
}

// The ciphertext, then the authentication tag, then the nonce.
void BulkSeal::seal(uint64_t tag, char* data, size_t size) const {
  uint8_t* bytes = bytes_of(data);
  uint8_t* nonce = bytes + size + kTagBytes;
  NumberBytes number = number_bytes(tag);
  randombytes_buf(nonce, kNonceBytes);
  crypto_aead_xchacha20poly1305_ietf_encrypt_detached(bytes, bytes + size, nullptr, bytes, size,
                                                      number.data(), number.size(), nullptr, nonce,
                                                      outward_.bytes.data());
}

bool BulkSeal::open(uint64_t tag, char* data, size_t sealed_size) const {
  if (sealed_size < kBulkSealBytes) return false;
  size_t size = sealed_size - kBulkSealBytes;
  uint8_t* bytes = bytes_of(data);
  NumberBytes number = number_bytes(tag);
  return crypto_aead_xchacha20poly1305_ietf_decrypt_detached(
             bytes, nullptr, bytes, size, bytes + size, number.data(), number.size(),
             bytes + size + kTagBytes, inward_.bytes.data()) == 0;
}

}  // namespace flow
