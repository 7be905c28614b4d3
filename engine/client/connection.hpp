// A connection between a client and the engine that has the state open for writing, over the
// state's Unix socket or over a session between machines.
//
// Both directions carry frames: a length (u32, little-endian) and that many bytes. The first frame
// of each direction is a preface (preface.hpp) that gives the protocol's version; all others are
// messages of client.proto, requests from the client and replies from the server.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/wait.hpp"
#include "engine/cluster/session/session_channel.hpp"
#include "engine/submission/requester.hpp"
#include "flow/result.hpp"

namespace flow {

namespace client_protocol {
class ClientRequest;
class ServerReply;
}  // namespace client_protocol

constexpr uint32_t kClientFrameMax = 64u << 20;  // maximum size of one message in bytes

/// One end of a connection. Any thread may call send() and shut_down(); one thread calls receive().
/// After the peer has closed the connection or cannot be reached, send() returns false and
/// receive() returns an error. After an error of receive() the connection must not be used for
/// receive() again. A connection does not reconnect: the caller creates a new one.
class EngineConnection {
 public:
  virtual ~EngineConnection() = default;

  /// A client sends requests, a server replies. Returns false if the peer is gone, or if the
  /// message is larger than kClientFrameMax; such a message is not sent, and the connection remains
  /// usable. Waits as long as the peer does not read.
  bool send(const client_protocol::ClientRequest& request);
  bool send(const client_protocol::ServerReply& reply);
  /// Returns the next message: a ClientRequest at the server, a ServerReply at the client. Returns
  /// an error of kind `environment` if the peer is gone, sends an invalid message, or sends no
  /// complete message within `within_ms` milliseconds (-1: no limit).
  ///
  /// If the peer speaks another version of the protocol, receive() at a client returns a
  /// ServerReply with an error that says so. At a server it returns an error, after it has sent its
  /// preface, from which the client makes that reply.
  template <typename Message>
  Result<Message> receive(int64_t within_ms = -1);

  /// Closes the connection in both directions; a blocked receive() returns an error. May be called
  /// more than once.
  virtual void shut_down() = 0;
  /// For a server whose connection failed: how long to wait for the client to connect again, in ms;
  /// 0: do not wait.
  virtual int64_t reconnect_window_ms() const { return 0; }
  /// Whether the connection ended by a stall: the peer's process accepts connections but did not
  /// answer a ping within kStallMs, as a suspended process does.
  virtual bool is_stalled() const { return false; }
  /// From this call on a stall does not end the connection. Instead, a thread that waits in send()
  /// or receive() calls `on_stalled`, once per stall, and continues to wait. No other thread may
  /// use the connection during this call. Only clients over a Unix socket detect stalls, and only
  /// where receive() has no time limit.
  virtual void set_stall_handler(std::function<void()>) {}
  /// The requester that a server records for a request that names `said` as its own; "": it names
  /// none.
  virtual std::string requester(std::string_view said) const = 0;
  /// Whether the peer speaks another version of the protocol. Only for the thread that receives.
  bool is_other_version() const { return is_other_version_; }

 private:
  /// Writes all bytes; returns false if the peer is gone.
  virtual bool write(std::string_view bytes) = 0;
  /// Reads `size` bytes. Returns false if the peer is gone, or if the time `until` passes first.
  virtual bool read(char* to, size_t size, const std::optional<Deadline>& until) = 0;

  template <typename Message>
  bool send_message(const Message& message);
  void send_rejection(std::string_view peer_preface);
  Result<std::string> receive_frame(const std::optional<Deadline>& until);

  std::mutex send_mutex_;
  bool has_sent_preface_ = false;  // guarded by send_mutex_
  bool has_received_preface_ =
      false;  // used only by the thread that receives, as is_other_version_
  bool is_other_version_ = false;
};

/// A client that has waited this long in send() or receive() pings the server on a second
/// connection, and waits as long again for the answer. A failure to connect does not count as a
/// stall. A server that works on a long request answers the ping; a suspended process does not.
constexpr int64_t kStallMs = 5'000;

/// A connection over the state's Unix socket. The socket has mode 0600, so client and server run as
/// the same user.
class UnixConnection final : public EngineConnection {
 public:
  /// Owns `descriptor`. `path`: the socket to which a client sends pings. A server passes "" and
  /// detects no stalls.
  explicit UnixConnection(int descriptor, std::string path = "")
      : descriptor_(descriptor), path_(std::move(path)) {}
  ~UnixConnection() override;
  UnixConnection(const UnixConnection&) = delete;
  UnixConnection& operator=(const UnixConnection&) = delete;

  /// Connects to the server that listens at `path`. Waits up to kStallMs if the server's listen
  /// queue is full.
  static Result<std::unique_ptr<UnixConnection>> connect(const std::string& path);
  void shut_down() override;
  bool is_stalled() const override { return stalled_; }
  /// As the request says; the user of this process if it says nothing.
  std::string requester(std::string_view said) const override;
  void set_stall_handler(std::function<void()> on_stalled) override {
    on_stalled_ = std::move(on_stalled);
  }

 private:
  bool write(std::string_view bytes) override;
  bool read(char* to, size_t size, const std::optional<Deadline>& until) override;
  /// `events`: of poll(2).
  bool wait(short events, const std::optional<Deadline>& until);
  const int descriptor_;
  const std::string path_;
  std::function<void()> on_stalled_;
  std::atomic<bool> stalled_ = false;
};

/// How long a server waits for the client of a failed session to connect again. A running client
/// connects at once.
constexpr int64_t kReconnectAfterCloseMs = 5'000;
/// The same, if the session timed out: it received nothing for its lost_after_ms. The network may
/// be down.
constexpr int64_t kReconnectAfterTimeoutMs = 50'000;

/// A connection over a session between machines whose peers share a secret.
class SessionConnection final : public EngineConnection {
 public:
  /// `peer_host`: the peer's address without its port; only a server needs it.
  explicit SessionConnection(std::shared_ptr<cluster::SessionChannel> channel,
                             std::string peer_host = "")
      : channel_(std::move(channel)), peer_host_(std::move(peer_host)) {}
  ~SessionConnection() override { shut_down(); }
  void shut_down() override { channel_->close("the connection was closed"); }
  int64_t reconnect_window_ms() const override;
  /// With the peer's address: the secret proves no user.
  std::string requester(std::string_view said) const override {
    return requester_from(said, peer_host_);
  }

 private:
  bool write(std::string_view bytes) override { return channel_->write(bytes); }
  bool read(char* to, size_t size, const std::optional<Deadline>& until) override {
    return channel_->read(to, size, until);
  }
  const std::shared_ptr<cluster::SessionChannel> channel_;
  const std::string peer_host_;
};

/// The path of the Unix socket on which the engine of the state listens.
std::string socket_path(const std::string& state_dir);
/// Listens at `path` with mode 0600; the caller owns the descriptor. Removes a file that is there:
/// the caller holds the state's lock. The path of a Unix socket has at most 107 bytes; a longer one
/// is bound through a descriptor of its folder, so only the file's name must be short.
Result<int> listen_at(const std::string& path);

}  // namespace flow
