// SHA-256 through OpenSSL. No other file sees its types.
#include "flow/digest.hpp"

#include <openssl/evp.h>

#include "flow/result.hpp"

namespace flow {
namespace {

// Fetched once: a fetch per digest costs more than hashing a hundred bytes.
const EVP_MD* sha256_method() {
  static const EVP_MD* method = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  FLOW_CHECK(method != nullptr);
  return method;
}

struct DigestContext {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  DigestContext() { FLOW_CHECK(handle != nullptr); }
  ~DigestContext() { EVP_MD_CTX_free(handle); }
  DigestContext(const DigestContext&) = delete;
  DigestContext& operator=(const DigestContext&) = delete;

  void start() { FLOW_CHECK(EVP_DigestInit_ex(handle, sha256_method(), nullptr) == 1); }
  void update(std::string_view data) {
    FLOW_CHECK(EVP_DigestUpdate(handle, data.data(), data.size()) == 1);
  }
  Digest finish() {
    Digest digest;
    unsigned int size = 0;
    FLOW_CHECK(EVP_DigestFinal_ex(handle, digest.bytes.data(), &size) == 1);
    FLOW_CHECK(size == digest.bytes.size());
    return digest;
  }
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Digest sha256(std::string_view data) {
  thread_local DigestContext context;
  context.start();
  context.update(data);
  return context.finish();
}

struct Sha256::Impl {
  DigestContext context;
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) { impl_->context.start(); }
Sha256::~Sha256() = default;
void Sha256::update(std::string_view data) { impl_->context.update(data); }
Digest Sha256::finish() { return impl_->context.finish(); }

std::string Digest::hex() const {
  static const char kDigits[] = "0123456789abcdef";
  std::string text(64, '0');
  for (size_t i = 0; i < bytes.size(); i++) {
    text[2 * i] = kDigits[bytes[i] >> 4];
    text[2 * i + 1] = kDigits[bytes[i] & 15];
  }
  return text;
}

bool Digest::parse_hex(std::string_view hex, Digest& out) {
  if (hex.size() != 64) return false;
  Digest digest;
  for (size_t i = 0; i < digest.bytes.size(); i++) {
    int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    digest.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  out = digest;
  return true;
}

bool Digest::from_bytes(std::string_view raw, Digest& out) {
  if (raw.size() != out.bytes.size()) return false;
  std::memcpy(out.bytes.data(), raw.data(), raw.size());
  return true;
}

}  // namespace flow
