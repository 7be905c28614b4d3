// Frames between a client and the writer of a state: a length and a canonical value, over a unix
// socket in the state or over a session between machines.
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
#include "flow/value.hpp"

namespace flow {

constexpr uint32_t kClientFrameMax = 64u << 20;

/// One connection. Sending is thread-safe; one thread receives.
class EngineConnection {
 public:
  virtual ~EngineConnection() = default;
  bool send(const Value& frame);  // false when the other side is gone, or it is over the limit
  /// Error (environment) when the other side is gone, talks nonsense, or sent no whole frame within
  /// the given time; -1 waits for ever.
  Result<Value> receive(int64_t within_ms = -1);
  virtual void shut_down() = 0;  // wakes a thread that receives
  /// Who was at the other end and has gone may be back within so long; 0 where it never is.
  virtual int64_t reconnect_window_ms() const { return 0; }
  /// Whether it ended because the other side is there and says nothing, not even to a ping.
  virtual bool is_stalled() const { return false; }
  /// Such a silence does not end it from now on, but is told, each once.
  virtual void on_peer_stalled(std::function<void()>) {}

 private:
  virtual bool write(std::string_view bytes) = 0;
  virtual bool read(char* to, size_t size, const std::optional<Deadline>& until) = 0;
  std::mutex sending_;
};

/// A client that heard nothing for so long asks on another connection whether anybody is there, and
/// gives that one as long again: a writer at a long work answers, one that is stopped does not.
constexpr int64_t kStallMs = 5'000;

/// The socket is 0600: both sides are the same user's.
class UnixConnection final : public EngineConnection {
 public:
  /// A client's knows the `path` that it came by; a writer waits for its clients as long as it
  /// takes.
  explicit UnixConnection(int descriptor, std::string path = "")
      : descriptor_(descriptor), path_(std::move(path)) {}
  ~UnixConnection() override;
  UnixConnection(const UnixConnection&) = delete;
  UnixConnection& operator=(const UnixConnection&) = delete;

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

/// A client whose connection broke has so long to be back: one that was killed never is, and one
/// that lives is back at once, or when the network is.
constexpr int64_t kReconnectAfterCutMs = 5'000;
/// The same where nothing was heard of it for the session's lost_after_ms: the network is cut.
constexpr int64_t kReconnectAfterLostMs = 50'000;

/// Over a session; both sides hold one secret.
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

std::string socket_path(const std::string& state_dir);
/// Listens at `path` (0600). Unix socket names hold 107 bytes; a longer path is bound through its
/// folder's descriptor.
Result<int> listen_at(const std::string& path);

}  // namespace flow
