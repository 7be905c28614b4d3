// A session that two threads of this process read from and write to as they would a socket: the
// stream of byte_stream.hpp, with the waiting.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/cluster/session/byte_stream.hpp"
#include "engine/cluster/session/session_link.hpp"

namespace flow::cluster {

/// One thread reads, any write, each waits; none of them is the transport's.
class SessionChannel final : public SessionUser {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// The session that this is the user of. Before anything is read or written.
  void attach(std::shared_ptr<SessionLink> link);
  /// Until the session is open; the Error says why it is not.
  Status wait_open();
  /// Waits until all of it is on its way; false where the session has ended.
  bool write(std::string_view bytes);
  /// Waits for so many bytes; false where the session ended before, or it is too late.
  bool read(char* to, size_t size, const std::optional<Deadline>& until);
  /// Ends the session; who reads or writes is woken.
  void close(std::string_view reason);
  /// How it ended, where it has.
  std::optional<std::pair<EndKind, Error>> end() const;
  const SessionPeer& peer() const { return peer_; }  // of one that was open

  void on_open(const SessionPeer& peer) override;
  void on_message(std::string message) override;
  void on_suspect(const std::string&) override {}
  void on_recovered() override {}
  void on_end(EndKind kind, const Error& why) override;

 private:
  std::mutex writing_;  // held by who writes, over all the messages of it
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<SessionLink> link_;  // until it has ended
  ByteStream stream_;
  SessionPeer peer_;
  bool is_open_ = false;
  std::optional<std::pair<EndKind, Error>> end_;
};

}  // namespace flow::cluster
