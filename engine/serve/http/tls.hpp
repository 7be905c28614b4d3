// The server's side of TLS 1.2 and 1.3 as a transformation of bytes, without a socket: what a
// client sent becomes plain bytes, and plain bytes become what it must receive. One thread at a
// time uses a context and its sessions.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

struct ssl_st;
struct ssl_ctx_st;

namespace flow {

/// Paths of PEM files.
struct TlsFiles {
  std::string certificate;   // the server's, followed by its intermediate certificates
  std::string key;           // of the certificate, not encrypted; may be the same file
  std::string clients = {};  // certificate authorities: a client must have a certificate of one of
                             // them (mutual TLS). "": no client needs a certificate
};

/// Certificates, their key, and the rules of all sessions: ECDHE with AES-GCM or ChaCha20-Poly1305,
/// `http/1.1` in ALPN, session tickets, no renegotiation, no early data.
class TlsContext {
 public:
  static constexpr int64_t kCheckUs = 1'000'000;
  static constexpr int64_t kTicketKeyUs = 3'600'000'000;  // then old tickets open no session

  /// An error of kind `user` says which file cannot be used, why, and what to do.
  static Result<std::shared_ptr<TlsContext>> open(const TlsFiles& files);

  /// Loads the files again if one has changed; looks at most once in kCheckUs. New sessions use the
  /// new certificates. If loading fails, the old ones stay, and the error is returned once per
  /// change of a file. `now_us` is monotonic. It also replaces the key of the session tickets.
  Status reload_if_changed(int64_t now_us);

  /// What an operator should know of the present files, one sentence each: an expired certificate,
  /// a key that every user of the machine can read.
  const std::vector<std::string>& warnings() const { return loaded_.warnings; }
  /// When the server's certificate expires, in ms since the Unix epoch.
  int64_t expires_at_ms() const { return loaded_.expires_at_ms; }

 private:
  friend class TlsSession;
  using FileStamps = std::array<std::array<int64_t, 5>, 3>;
  struct Loaded {
    std::shared_ptr<ssl_ctx_st> settings;
    std::vector<std::string> warnings;
    int64_t expires_at_ms = 0;
  };

  explicit TlsContext(TlsFiles files) : files_(std::move(files)) {}
  static Result<Loaded> load(const TlsFiles& files);
  static FileStamps stamps_of(const TlsFiles& files);

  const TlsFiles files_;
  Loaded loaded_;
  FileStamps stamps_{};
  int64_t checked_us_ = 0, ticket_key_us_ = 0;
};

/// One connection. Its memory, measured: 0.1 KB until the first byte, 44 KB during the handshake,
/// and then 14 KB, or 19 KB with a client's certificate.
class TlsSession {
 public:
  /// A client that sends more before the handshake ends is rejected.
  static constexpr size_t kHandshakeBytesMax = 64 * 1024;
  /// Handshake messages after the handshake without any data between them.
  static constexpr int kIdleMessagesMax = 16;

  /// The session outlives a reload of the context and the context itself.
  explicit TlsSession(const TlsContext& context);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// Takes bytes of the socket, appends decrypted bytes to `plain`, at most 16 KiB more than it
  /// got, and bytes for the client to `wire`. False: the session has failed, and the connection
  /// must be closed after `wire` is sent. A client that sends plain HTTP gets a plain response with
  /// status 400. After the client's close_notify, bytes are ignored.
  [[nodiscard]] bool receive(std::string_view bytes, std::string& plain, std::string& wire);
  /// Appends encrypted bytes to `wire`: those of `plain` and about 22 bytes per 16 KiB; a caller
  /// that sends a large text part by part needs less memory. Only while is_open(). False: as for
  /// receive().
  [[nodiscard]] bool send(std::string_view plain, std::string& wire);
  /// Appends a close_notify if the session is open; then it is not open any more.
  void close(std::string& wire);

  /// The handshake is done, and neither close() was called nor has the session failed. A session
  /// whose client has sent its close_notify is still open: responses may follow.
  bool is_open() const { return state_ == State::open; }
  /// The client has sent its close_notify: nothing follows from it.
  bool has_ended() const { return has_ended_; }
  /// Why the session has failed; "" if it has not.
  const std::string& failure() const { return failure_; }

  /// What the library reads and writes during one call. Only tls.cc uses it.
  struct Exchange {
    std::string_view in;
    std::string* out = nullptr;
    size_t handshake_bytes = 0;
    int idle_messages = 0;
    bool is_handshake = true, is_exceeded = false;
  };

 private:
  enum class State : uint8_t { fresh, handshake, open, closed, failed };

  bool begin();
  bool shake_hands();
  bool read(std::string& plain);
  bool fail(std::string why);
  bool fail_by_library(const char* what);

  struct SessionDeleter {
    void operator()(ssl_st* session) const;
  };

  std::shared_ptr<ssl_ctx_st> settings_;  // until the first byte arrives
  // Made when the first byte arrives, so that a connection that sends nothing needs little memory.
  std::unique_ptr<ssl_st, SessionDeleter> session_;
  Exchange exchange_;
  State state_ = State::fresh;
  bool has_ended_ = false;
  std::string failure_;
};

}  // namespace flow
