#include "engine/serve/http/tls.hpp"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"

namespace flow {

namespace {

constexpr uint64_t kFileBytesMax = 1u << 20;
constexpr size_t kDerHeadBytes = 16;
constexpr size_t kChainMax = 16;     // certificates in one chain
constexpr size_t kClientsMax = 128;  // authorities; their names are part of each handshake
constexpr long kClientChainBytesMax = 32 * 1024;
constexpr int kClientChainDepthMax = 8;
constexpr long kTicketLifetimeS = 300;  // a resumed session does not check the client's certificate
constexpr size_t kRecordBytes = 16 * 1024, kRecordOverhead = 64;
constexpr unsigned char kHandshakeRecord = 22;

constexpr const char* kCiphers12 = "ECDHE+AESGCM:ECDHE+CHACHA20";
constexpr const char* kCiphers13 =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr const char* kGroups = "X25519:P-256:P-384";
constexpr std::string_view kProtocol = "http/1.1";

template <auto function>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    function(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Free<BIO_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using CertificatePtr = std::unique_ptr<X509, Free<X509_free>>;

/// The library's reason for the last failure; empties its queue, which belongs to the thread.
std::string take_reason() {
  unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "";
  int alert = ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET;
  if (ERR_GET_LIB(code) == ERR_LIB_SSL && alert >= 0 && alert < 256)
    return fmt::format("the client sent alert {} ({})", alert, SSL_alert_desc_string_long(alert));
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : fmt::format("error {:x}", code);
}

// ---- Files ----

/// A file and how messages name it.
struct PemFile {
  const char* role;  // "TLS certificate"
  const std::string& path;
  std::string text = {};

  Error error(std::string_view what) const {
    return user_error(fmt::format("the {} `{}` {}", role, path, what));
  }
  bool has(std::string_view label) const { return text.find(label) != std::string::npos; }
  bool is_der() const {  // a sequence, not a text that begins with the digit 0
    return text.starts_with('\x30') &&
           text.find_first_of(std::string_view("\x01\x02\x03\x04")) < kDerHeadBytes;
  }
};

Status read_text(PemFile& file) {
  if (file.path.empty())
    return user_error(fmt::format("the {} has no file: name a PEM file", file.role));
  auto text = read_file(file.path, kFileBytesMax);
  if (!text.ok())
    return user_error(fmt::format(
        "the {} is not readable: {}. Check the path and the file's permissions, or name another "
        "PEM file",
        file.role, text.error().message));
  file.text = std::move(*text);
  return {};
}

BioPtr reader_of(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Result<std::vector<CertificatePtr>> read_certificates(const PemFile& file, size_t count_max) {
  std::vector<CertificatePtr> certificates;
  BioPtr reader = reader_of(file.text);
  ERR_clear_error();
  while (CertificatePtr next{PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)}) {
    if (certificates.size() == count_max)
      return file.error(
          fmt::format("has more than {} certificates: remove those that are not "
                      "needed",
                      count_max));
    certificates.push_back(std::move(next));
  }
  bool is_at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  std::string reason = take_reason();
  if (!is_at_end)
    return file.error(
        fmt::format("is damaged: its certificate {} cannot be read ({}). Copy the "
                    "file again",
                    certificates.size() + 1, reason));
  if (!certificates.empty()) return certificates;
  if (file.has("PRIVATE KEY-----"))
    return file.error("has a private key and no certificate: are two options swapped?");
  if (file.is_der())
    return file.error(
        "is in DER format, not PEM. Convert it: `openssl x509 -inform DER -in OLD -out NEW`");
  return file.error(
      "is not PEM: it has no block `-----BEGIN CERTIFICATE-----`. Name a file with the "
      "certificates as PEM text");
}

int refuse_password(char*, int, int, void*) { return -1; }

Result<KeyPtr> read_key(const PemFile& file) {
  BioPtr reader = reader_of(file.text);
  ERR_clear_error();
  KeyPtr key{PEM_read_bio_PrivateKey(reader.get(), nullptr, refuse_password, nullptr)};
  std::string reason = take_reason();
  if (key) return key;
  if (file.has("ENCRYPTED"))
    return file.error(
        "is encrypted with a password, which a service cannot ask for. Decrypt it: `openssl pkey "
        "-in OLD -out NEW`, and protect the new file: `chmod 600 NEW`");
  if (file.has("PRIVATE KEY-----"))
    return file.error(fmt::format("is damaged: {}. Copy the file again", reason));
  if (file.has("CERTIFICATE-----"))
    return file.error("has a certificate and no private key: are two options swapped?");
  if (file.is_der())
    return file.error(
        "is in DER format, not PEM. Convert it: `openssl pkey -inform DER -in OLD -out NEW`");
  return file.error(
      "is not PEM: it has no block `-----BEGIN PRIVATE KEY-----`. Name a file with the key as PEM "
      "text");
}

int64_t seconds_of(const ASN1_TIME* time) {
  tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? static_cast<int64_t>(::timegm(&parts)) : 0;
}

std::string date_of(int64_t seconds) {
  tm parts{};
  time_t time = seconds;
  ::gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

void note_validity(const PemFile& file, size_t position, const X509* certificate,
                   std::vector<std::string>& warnings) {
  int64_t now = now_ms() / 1000, from = seconds_of(X509_get0_notBefore(certificate)),
          until = seconds_of(X509_get0_notAfter(certificate));
  std::string which =
      position == 0 ? "" : fmt::format(" has a certificate (number {}) that", position + 1);
  if (until < now)
    warnings.push_back(fmt::format("the {} `{}`{} has expired at {}: replace it", file.role,
                                   file.path, which, date_of(until)));
  if (from > now)
    warnings.push_back(
        fmt::format("the {} `{}`{} is valid only from {} on: check the clock of "
                    "this machine",
                    file.role, file.path, which, date_of(from)));
}

void note_mode(const PemFile& file, std::vector<std::string>& warnings) {
  struct stat info {};
  if (::stat(file.path.c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0)
    warnings.push_back(
        fmt::format("every user of this machine can read the {} `{}`: `chmod 600` "
                    "the file",
                    file.role, file.path));
}

// ---- The library's settings ----

int select_protocol(SSL*, const unsigned char** out, unsigned char* out_size,
                    const unsigned char* in, unsigned int in_size, void*) {
  for (unsigned int at = 0; at < in_size; at += 1u + in[at]) {
    if (in[at] > in_size - at - 1) break;
    std::string_view offered(reinterpret_cast<const char*>(in + at + 1), in[at]);
    if (offered != kProtocol) continue;
    *out = in + at + 1;
    *out_size = in[at];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;  // RFC 7301, 3.2: no_application_protocol
}

TlsSession::Exchange& exchange_of(BIO* bio) {
  return *static_cast<TlsSession::Exchange*>(BIO_get_data(bio));
}

/// Counts the client's handshake messages. An established session needs few: TLS 1.3 permits a
/// client to ask for new keys without end, and each time costs the server far more than the client.
void count_message(int is_sent, int, int type, const void*, size_t, SSL* session, void*) {
  if (is_sent != 0 || type != SSL3_RT_HANDSHAKE) return;
  exchange_of(SSL_get_rbio(session)).idle_messages++;
}

bool replace_ticket_key(SSL_CTX* settings) {
  std::array<unsigned char, 128> key{};
  long size = SSL_CTX_get_tlsext_ticket_keys(settings, nullptr, 0);
  if (size <= 0 || size > static_cast<long>(key.size())) return false;
  bool is_set = RAND_priv_bytes(key.data(), static_cast<int>(size)) == 1 &&
                SSL_CTX_set_tlsext_ticket_keys(settings, key.data(), size) == 1;
  OPENSSL_cleanse(key.data(), key.size());
  return is_set;
}

std::shared_ptr<SSL_CTX> new_settings() {
  std::shared_ptr<SSL_CTX> made(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  SSL_CTX* s = made.get();
  if (s == nullptr) return nullptr;
  // A file of the machine (openssl.cnf) may have set something else before.
  SSL_CTX_clear_options(s, SSL_CTX_get_options(s));
  SSL_CTX_set_options(s, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                             SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA |
                             SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_security_level(s, 2);
  SSL_CTX_set_mode(s, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY | SSL_MODE_NO_AUTO_CHAIN);
  SSL_CTX_set_session_cache_mode(s, SSL_SESS_CACHE_OFF);  // tickets need no memory here
  SSL_CTX_set_timeout(s, kTicketLifetimeS);
  SSL_CTX_set_max_early_data(s, 0);
  SSL_CTX_set_max_cert_list(s, kClientChainBytesMax);
  SSL_CTX_set_alpn_select_cb(s, select_protocol, nullptr);
  SSL_CTX_set_msg_callback(s, count_message);
  constexpr unsigned char kContext[] = {'f', 'l', 'o', 'w'};
  bool is_set =
      SSL_CTX_set_min_proto_version(s, TLS1_2_VERSION) == 1 &&
      SSL_CTX_set_max_proto_version(s, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_cipher_list(s, kCiphers12) == 1 && SSL_CTX_set_ciphersuites(s, kCiphers13) == 1 &&
      SSL_CTX_set1_groups_list(s, kGroups) == 1 && SSL_CTX_set_num_tickets(s, 1) == 1 &&
      SSL_CTX_set_session_id_context(s, kContext, sizeof kContext) == 1 && replace_ticket_key(s);
  return is_set ? made : nullptr;
}

Status use_certificate(SSL_CTX* settings, const PemFile& file, const PemFile& key_file,
                       const std::vector<CertificatePtr>& chain, KeyPtr key) {
  auto belongs = [&](const CertificatePtr& certificate) {
    const EVP_PKEY* its_key = X509_get0_pubkey(certificate.get());
    return its_key != nullptr && EVP_PKEY_eq(its_key, key.get()) == 1;
  };
  auto found = std::find_if(chain.begin(), chain.end(), belongs);
  ERR_clear_error();
  if (found == chain.end())
    return user_error(fmt::format(
        "the TLS key `{}` does not belong to the certificate `{}`: name the key with which the "
        "certificate was requested",
        key_file.path, file.path));
  if (found != chain.begin())
    return file.error(
        fmt::format("has the server's certificate at position {}: move it before the "
                    "intermediate certificates",
                    found - chain.begin() + 1));
  bool is_set = SSL_CTX_use_certificate(settings, chain[0].get()) == 1;
  for (size_t i = 1; is_set && i < chain.size(); i++)
    is_set = SSL_CTX_add1_chain_cert(settings, chain[i].get()) == 1;
  is_set = is_set && SSL_CTX_use_PrivateKey(settings, key.get()) == 1;
  if (is_set) return {};
  return file.error(
      fmt::format("cannot be used: {}. Use a key of type ECDSA (P-256) or Ed25519, or "
                  "RSA with at least 2048 bits, and a signature with SHA-256 or better",
                  take_reason()));
}

Status require_clients(SSL_CTX* settings, const PemFile& file,
                       const std::vector<CertificatePtr>& authorities) {
  X509_STORE* store = SSL_CTX_get_cert_store(settings);
  // Also an intermediate authority is trusted without its root, because the file names it.
  bool is_set = X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN) == 1;
  for (const CertificatePtr& authority : authorities)
    is_set = is_set && X509_STORE_add_cert(store, authority.get()) == 1 &&
             SSL_CTX_add_client_CA(settings, authority.get()) == 1;
  if (!is_set) return file.error(fmt::format("cannot be used: {}", take_reason()));
  SSL_CTX_set_verify(settings, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_verify_depth(settings, kClientChainDepthMax);
  return {};
}

// ---- The library's input and output ----

int bio_read(BIO* bio, char* to, size_t size, size_t* got) {
  TlsSession::Exchange& exchange = exchange_of(bio);
  BIO_clear_retry_flags(bio);
  *got = std::min(size, exchange.in.size());
  bool is_exceeded = exchange.is_handshake
                         ? exchange.handshake_bytes + *got > TlsSession::kHandshakeBytesMax
                         : exchange.idle_messages > TlsSession::kIdleMessagesMax;
  if (is_exceeded && *got > 0) {
    exchange.is_exceeded = true;
    *got = 0;
  }
  if (*got == 0) {
    BIO_set_retry_read(bio);
    return 0;
  }
  if (exchange.is_handshake) exchange.handshake_bytes += *got;
  exchange.in.copy(to, *got);
  exchange.in.remove_prefix(*got);
  return 1;
}

int bio_write(BIO* bio, const char* from, size_t size, size_t* written) {
  BIO_clear_retry_flags(bio);
  exchange_of(bio).out->append(from, size);
  *written = size;
  return 1;
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

/// Reads and writes an Exchange. In contrast to the library's BIO of memory it keeps no buffer and
/// copies nothing twice.
const BIO_METHOD* exchange_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "flow exchange");
    FLOW_CHECK(made != nullptr);
    BIO_meth_set_read_ex(made, bio_read);
    BIO_meth_set_write_ex(made, bio_write);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return method;
}

/// The library is given the caller's buffers only for the time of one call.
class Buffers {
 public:
  Buffers(TlsSession::Exchange& exchange, std::string_view in, std::string& out)
      : exchange_(exchange) {
    exchange_.in = in;
    exchange_.out = &out;
    ERR_clear_error();
  }
  ~Buffers() {
    exchange_.in = {};
    exchange_.out = nullptr;
    ERR_clear_error();
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

 private:
  TlsSession::Exchange& exchange_;
};

bool is_letter(unsigned char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

std::string plain_http_response() {
  constexpr std::string_view kBody =
      R"({"error":"this port expects HTTPS and received plain HTTP: use an https:// address"})";
  return fmt::format(
      "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      kBody.size(), kBody);
}

}  // namespace

// ---- TlsContext ----

Result<std::shared_ptr<TlsContext>> TlsContext::open(const TlsFiles& files) {
  std::shared_ptr<TlsContext> context(new TlsContext(files));
  context->stamps_ = stamps_of(files);  // before reading: a later change is then seen
  auto loaded = load(files);
  if (!loaded.ok()) return loaded.error();
  context->loaded_ = std::move(*loaded);
  context->checked_us_ = context->ticket_key_us_ = monotonic_us();
  return context;
}

Status TlsContext::reload_if_changed(int64_t now_us) {
  if (now_us - checked_us_ < kCheckUs) return {};
  checked_us_ = now_us;
  if (now_us - ticket_key_us_ >= kTicketKeyUs && replace_ticket_key(loaded_.settings.get()))
    ticket_key_us_ = now_us;
  FileStamps stamps = stamps_of(files_);
  if (stamps == stamps_) return {};
  stamps_ = stamps;
  auto loaded = load(files_);
  if (!loaded.ok()) {
    Error error = loaded.error();
    error.message += ". The certificate that was loaded before stays in use";
    return error;
  }
  loaded_ = std::move(*loaded);
  ticket_key_us_ = now_us;
  return {};
}

Result<TlsContext::Loaded> TlsContext::load(const TlsFiles& files) {
  Loaded loaded;
  loaded.settings = new_settings();
  if (!loaded.settings)
    return environment_error(
        fmt::format("OpenSSL cannot be set up for TLS: {}. Check the file openssl.cnf of this "
                    "machine",
                    take_reason()));
  PemFile certificate{"TLS certificate", files.certificate}, key{"TLS key", files.key},
      clients{"file of TLS client authorities", files.clients};
  FLOW_TRY(read_text(certificate));
  auto chain = read_certificates(certificate, kChainMax);
  if (!chain.ok()) return chain.error();
  FLOW_TRY(read_text(key));
  auto private_key = read_key(key);
  OPENSSL_cleanse(key.text.data(), key.text.size());
  if (!private_key.ok()) return private_key.error();
  FLOW_TRY(
      use_certificate(loaded.settings.get(), certificate, key, *chain, std::move(*private_key)));
  for (size_t i = 0; i < chain->size(); i++)
    note_validity(certificate, i, (*chain)[i].get(), loaded.warnings);
  note_mode(key, loaded.warnings);
  loaded.expires_at_ms = seconds_of(X509_get0_notAfter((*chain)[0].get())) * 1000;
  if (files.clients.empty()) return loaded;
  FLOW_TRY(read_text(clients));
  // OpenSSL would skip it, and the operator would rely on it.
  if (clients.has("BEGIN X509 CRL-----"))
    return clients.error(
        "has a revocation list, which is not supported: remove it, and end a "
        "client's access by a new authority");
  auto authorities = read_certificates(clients, kClientsMax);
  if (!authorities.ok()) return authorities.error();
  FLOW_TRY(require_clients(loaded.settings.get(), clients, *authorities));
  for (size_t i = 0; i < authorities->size(); i++)
    note_validity(clients, i, (*authorities)[i].get(), loaded.warnings);
  return loaded;
}

TlsContext::FileStamps TlsContext::stamps_of(const TlsFiles& files) {
  constexpr int64_t kNsPerS = 1'000'000'000;
  const std::string* paths[] = {&files.certificate, &files.key, &files.clients};
  FileStamps stamps{};
  for (size_t i = 0; i < stamps.size(); i++) {
    struct stat info {};
    if (paths[i]->empty() || ::stat(paths[i]->c_str(), &info) != 0) continue;
    stamps[i] = {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino), info.st_size,
                 info.st_mtim.tv_sec * kNsPerS + info.st_mtim.tv_nsec,
                 info.st_ctim.tv_sec * kNsPerS + info.st_ctim.tv_nsec};
  }
  return stamps;
}

// ---- TlsSession ----

void TlsSession::SessionDeleter::operator()(ssl_st* session) const { SSL_free(session); }

TlsSession::TlsSession(const TlsContext& context) : settings_(context.loaded_.settings) {}
TlsSession::~TlsSession() = default;

bool TlsSession::receive(std::string_view bytes, std::string& plain, std::string& wire) {
  if (state_ == State::failed) return false;
  if (has_ended_ || bytes.empty()) return true;
  if (state_ == State::fresh) {
    auto first = static_cast<unsigned char>(bytes[0]);
    if (first != kHandshakeRecord) {
      if (!is_letter(first)) return fail("the client does not speak TLS");
      wire += plain_http_response();
      return fail("the client sent plain HTTP");
    }
    if (!begin()) return fail_by_library("cannot begin a session");
  }
  Buffers buffers(exchange_, bytes, wire);
  if (state_ == State::handshake && !shake_hands()) return state_ != State::failed;
  return read(plain);
}

bool TlsSession::begin() {
  ERR_clear_error();
  session_.reset(SSL_new(settings_.get()));
  BIO* bio = BIO_new(exchange_method());
  if (!session_ || bio == nullptr) {
    BIO_free(bio);
    return false;
  }
  settings_.reset();
  BIO_set_data(bio, &exchange_);
  BIO_set_init(bio, 1);
  SSL_set_bio(session_.get(), bio, bio);  // owns it
  SSL_set_accept_state(session_.get());
  state_ = State::handshake;
  return true;
}

/// Whether the session is open.
bool TlsSession::shake_hands() {
  int done = SSL_do_handshake(session_.get());
  if (exchange_.is_exceeded)
    return fail(fmt::format("the handshake has more than {} bytes", kHandshakeBytesMax));
  if (done == 1) {
    state_ = State::open;
    exchange_.is_handshake = false;
    exchange_.idle_messages = 0;
    return true;
  }
  if (SSL_get_error(session_.get(), done) == SSL_ERROR_WANT_READ) return false;
  return fail_by_library("the handshake failed");
}

bool TlsSession::read(std::string& plain) {
  char buffer[kRecordBytes];
  size_t size = 0;
  while (SSL_read_ex(session_.get(), buffer, sizeof buffer, &size) == 1) {
    plain.append(buffer, size);
    exchange_.idle_messages = 0;
  }
  int error = SSL_get_error(session_.get(), 0);
  if (exchange_.is_exceeded)
    return fail(fmt::format("more than {} handshake messages without data", kIdleMessagesMax));
  if (error == SSL_ERROR_ZERO_RETURN) {
    has_ended_ = true;
    return true;
  }
  if (error == SSL_ERROR_WANT_READ && exchange_.in.empty()) return true;
  return fail_by_library("the session failed");
}

bool TlsSession::send(std::string_view plain, std::string& wire) {
  FLOW_CHECK(is_open());
  if (plain.empty()) return true;
  Buffers buffers(exchange_, {}, wire);
  wire.reserve(wire.size() + plain.size() + (plain.size() / kRecordBytes + 1) * kRecordOverhead);
  size_t written = 0;
  int done = SSL_write_ex(session_.get(), plain.data(), plain.size(), &written);
  return (done == 1 && written == plain.size()) || fail_by_library("cannot encrypt");
}

void TlsSession::close(std::string& wire) {
  if (!is_open()) return;
  Buffers buffers(exchange_, {}, wire);
  SSL_shutdown(session_.get());
  state_ = State::closed;
}

/// Returns false.
bool TlsSession::fail(std::string why) {
  state_ = State::failed;
  failure_ = std::move(why);
  session_.reset();
  settings_.reset();
  return false;
}

bool TlsSession::fail_by_library(const char* what) {
  std::string reason = take_reason();
  return fail(reason.empty() ? what : fmt::format("{}: {}", what, reason));
}

}  // namespace flow
