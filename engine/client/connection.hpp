// A connection between a client and the engine that writes a state: over the unix socket of the
// state, or over a session between machines.
//
// Both directions carry frames: a length (u32, little-endian) and that many bytes. The first frame
// of each direction is a preface (preface.hpp) that names the version; all others are messages of
// client.proto, requests from the client and replies from the server.
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
#include "flow/result.hpp"

namespace flow {

namespace client_protocol {
class ClientRequest;
class ServerReply;
}  // namespace client_protocol

constexpr uint32_t kClientFrameMax = 64u << 20;  // bytes of one message

/// One end of a connection. Any thread may send; one thread receives; any thread may call
/// shut_down(). If the other side is gone, sends return false and receives return an error; a
/// connection is never restored, its user creates another one.
class EngineConnection {
 public:
  virtual ~EngineConnection() = default;

  /// False if the other side is gone, or the message is over kClientFrameMax: nothing was sent
  /// then.
  bool send(const client_protocol::ClientRequest& request);
  bool send(const client_protocol::ServerReply& reply);
  /// The next message: ClientRequest at the server, ServerReply at the client. Error (environment)
  /// if the other side is gone, sends what is not such a message, or sent no whole one within
  /// `within_ms`; -1: no limit.
  ///
  /// If the other side speaks another version of the protocol, a client gets an error reply that
  /// says so, as from a server that rejects its request; a server gets an error, and the client has
  /// been sent one.
  template <typename Message>
  Result<Message> receive(int64_t within_ms = -1);

  virtual void shut_down() = 0;  // wakes the thread that receives
  /// How long the client of a broken connection may take to connect again; 0: it will not.
  virtual int64_t reconnect_window_ms() const { return 0; }
  /// Whether the connection ended because the other side exists and does not answer, not even a
  /// ping.
  virtual bool is_stalled() const { return false; }
  /// From now on a stall does not end the connection: `on_stalled` is called once for each, by the
  /// thread that waits.
  virtual void on_peer_stalled(std::function<void()>) {}
  /// Whether the other side speaks another version. For the thread that receives.
  bool is_other_version() const { return is_other_version_; }

 private:
  virtual bool write(std::string_view bytes) = 0;
  /// Reads `size` bytes. False if the other side is gone, or at `until`.
  virtual bool read(char* to, size_t size, const std::optional<Deadline>& until) = 0;

  template <typename Message>
  bool send_message(const Message& message);
  void send_rejection(std::string_view peer_preface);
  Result<std::string> receive_frame(const std::optional<Deadline>& until);

  std::mutex sending_;
  bool has_sent_preface_ = false;      // under sending_
  bool has_received_preface_ = false;  // of the thread that receives, as the next
  bool is_other_version_ = false;
};

/// A client that received nothing for this long pings the server on another connection, and gives
/// the ping as long again. A server that works on a long request answers the ping; a stopped one
/// does not.
constexpr int64_t kStallMs = 5'000;

/// Over the socket of a state. Its mode is 0600: both sides belong to the same user.
class UnixConnection final : public EngineConnection {
 public:
  /// Owns `descriptor`. `path`: where the client of a server connected, for pings; a server passes
  /// none, and waits for its clients without a limit.
  explicit UnixConnection(int descriptor, std::string path = "")
      : descriptor_(descriptor), path_(std::move(path)) {}
  ~UnixConnection() override;
  UnixConnection(const UnixConnection&) = delete;
  UnixConnection& operator=(const UnixConnection&) = delete;

  /// Connects to the server that listens at `path`. Waits up to kStallMs if its queue is full.
  static Result<std::unique_ptr<UnixConnection>> connect(const std::string& path);
  void shut_down() override;
  bool is_stalled() const override { return stalled_; }
  void on_peer_stalled(std::function<void()> on_stalled) override {
    on_stalled_ = std::move(on_stalled);
  }

 private:
  bool write(std::string_view bytes) override;
  bool read(char* to, size_t size, const std::optional<Deadline>& until) override;
  bool wait(short events, const std::optional<Deadline>& until);
  const int descriptor_;
  const std::string path_;
  std::function<void()> on_stalled_;
  std::atomic<bool> stalled_ = false;
};

/// How long the client of a broken session may take to connect again: a live client connects at
/// once, or when the network works again; a killed one never does.
constexpr int64_t kReconnectAfterCutMs = 5'000;
/// The same if the session ended because nothing was received for its lost_after_ms: the network is
/// cut.
constexpr int64_t kReconnectAfterLostMs = 50'000;

/// Over a session between machines, whose two sides hold one secret.
class SessionConnection final : public EngineConnection {
 public:
  explicit SessionConnection(std::shared_ptr<cluster::SessionChannel> channel)
      : channel_(std::move(channel)) {}
  ~SessionConnection() override { shut_down(); }
  void shut_down() override { channel_->close("all is said"); }
  int64_t reconnect_window_ms() const override;

 private:
  bool write(std::string_view bytes) override { return channel_->write(bytes); }
  bool read(char* to, size_t size, const std::optional<Deadline>& until) override {
    return channel_->read(to, size, until);
  }
  const std::shared_ptr<cluster::SessionChannel> channel_;
};

/// Where the writer of a state listens.
std::string socket_path(const std::string& state_dir);
/// Listens at `path` with mode 0600; the caller owns the descriptor. Unix socket names hold 107
/// bytes: a longer path is bound through the descriptor of its folder.
Result<int> listen_at(const std::string& path);

}  // namespace flow
