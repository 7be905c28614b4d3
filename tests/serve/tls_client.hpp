// A TLS client without a socket. Its bytes are moved by the test.
#pragma once
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "flow/result.hpp"
#include "tests/serve/certificates.hpp"

struct TlsClientOptions {
  int version_min = TLS1_2_VERSION, version_max = TLS1_3_VERSION;
  const Identity* authority = nullptr;  // null: every server is accepted
  const Identity* identity = nullptr;   // the client's certificate
  std::string alpn = {};                // each name with its length before it
  SSL_SESSION* resumed = nullptr;
  const char* ciphers = nullptr;  // of TLS 1.2
};

class TlsClient {
 public:
  /// The part of the options that takes long to set up; many clients may share it.
  static std::shared_ptr<SSL_CTX> settings_of(const TlsClientOptions& options) {
    std::shared_ptr<SSL_CTX> made(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    SSL_CTX* settings = made.get();
    SSL_CTX_set_security_level(settings, 0);  // old versions of TLS need it
    SSL_CTX_set_min_proto_version(settings, options.version_min);
    SSL_CTX_set_max_proto_version(settings, options.version_max);
    if (options.ciphers != nullptr)
      FLOW_CHECK(SSL_CTX_set_cipher_list(settings, options.ciphers) == 1);
    SSL_CTX_set_session_cache_mode(settings,
                                   SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
    if (options.authority != nullptr) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(settings), options.authority->certificate.get());
      SSL_CTX_set_verify(settings, SSL_VERIFY_PEER, nullptr);
    }
    if (options.identity != nullptr) {
      FLOW_CHECK(SSL_CTX_use_certificate(settings, options.identity->certificate.get()) == 1);
      FLOW_CHECK(SSL_CTX_use_PrivateKey(settings, options.identity->key.get()) == 1);
    }
    return made;
  }

  explicit TlsClient(const TlsClientOptions& options = {})
      : TlsClient(options, settings_of(options)) {}
  TlsClient(const TlsClientOptions& options, std::shared_ptr<SSL_CTX> settings)
      : settings_(std::move(settings)) {
    session_ = {SSL_new(settings_.get()), SSL_free};
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(session_.get(), in_, out_);
    SSL_set_connect_state(session_.get());
    SSL_set_tlsext_host_name(session_.get(), "localhost");
    SSL_set1_host(session_.get(), "localhost");
    if (!options.alpn.empty())
      SSL_set_alpn_protos(session_.get(),
                          reinterpret_cast<const unsigned char*>(options.alpn.data()),
                          static_cast<unsigned int>(options.alpn.size()));
    if (options.resumed != nullptr) SSL_set_session(session_.get(), options.resumed);
  }

  /// Takes the server's bytes and appends what they decrypt to. False after a failure.
  bool receive(std::string_view bytes, std::string& plain) {
    if (!bytes.empty()) BIO_write(in_, bytes.data(), static_cast<int>(bytes.size()));
    ERR_clear_error();
    int done = SSL_do_handshake(session_.get());
    if (done != 1) return is_waiting(done);
    char buffer[16 * 1024];
    size_t size = 0;
    while (SSL_read_ex(session_.get(), buffer, sizeof buffer, &size) == 1)
      plain.append(buffer, size);
    has_ended_ = SSL_get_error(session_.get(), 0) == SSL_ERROR_ZERO_RETURN;
    return has_ended_ || is_waiting(0);
  }
  void send(std::string_view plain) {
    size_t written = 0;
    FLOW_CHECK(SSL_write_ex(session_.get(), plain.data(), plain.size(), &written) == 1);
  }
  void close() { SSL_shutdown(session_.get()); }
  /// What the server must receive.
  std::string take() {
    std::string bytes(BIO_ctrl_pending(out_), '\0');
    if (!bytes.empty()) BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
  }

  bool is_open() const { return SSL_is_init_finished(session_.get()) == 1; }
  bool has_ended() const { return has_ended_; }
  /// The server's fatal alert, such as SSL_AD_PROTOCOL_VERSION; -1: none.
  int alert() const { return alert_; }
  SSL* library() const { return session_.get(); }

 private:
  bool is_waiting(int done) {
    if (SSL_get_error(session_.get(), done) == SSL_ERROR_WANT_READ) return true;
    int reason = ERR_GET_REASON(ERR_peek_last_error());
    if (reason >= SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256)
      alert_ = reason - SSL_AD_REASON_OFFSET;
    ERR_clear_error();
    return false;
  }

  std::shared_ptr<SSL_CTX> settings_;
  std::shared_ptr<SSL> session_;
  BIO *in_ = nullptr, *out_ = nullptr;  // of the session
  bool has_ended_ = false;
  int alert_ = -1;
};
