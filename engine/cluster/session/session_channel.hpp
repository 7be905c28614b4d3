// A session with a blocking interface like that of a socket, over the stream of byte_stream.hpp.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/wait.hpp"
#include "engine/cluster/session/byte_stream.hpp"
#include "engine/cluster/session/session_link.hpp"

namespace flow::cluster {

/// One thread reads and any thread writes; calls block, so none may come from the transport's
/// thread.
class SessionChannel final : public SessionUser {
 public:
  /// Sets the session. Call this before reading or writing.
  void attach(std::shared_ptr<SessionLink> link);
  /// Blocks until the session is open, or returns why it ended.
  Status wait_open();
  /// Blocks until all bytes are sent. Returns false if the session has ended.
  bool write(std::string_view bytes);
  /// Blocks for `size` bytes. Returns false if the session ends first or the deadline passes.
  bool read(char* to, size_t size, const std::optional<Deadline>& until);
  /// Ends the session and wakes readers and writers.
  void close(std::string_view reason);
  /// How the session ended, if it has.
  std::optional<std::pair<EndKind, Error>> end() const;
  const SessionPeer& peer() const { return peer_; }  // valid once the session was open

  void on_open(const SessionPeer& peer) override;
  void on_message(std::string message) override;
  void on_suspect(const std::string&) override {}
  void on_recovered() override {}
  void on_end(EndKind kind, const Error& why) override;

 private:
  std::mutex writing_;  // held by a writer for all chunks of its data
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<SessionLink> link_;  // until it has ended
  ByteStream stream_;
  SessionPeer peer_;
  bool is_open_ = false;
  std::optional<std::pair<EndKind, Error>> end_;
};

}  // namespace flow::cluster
