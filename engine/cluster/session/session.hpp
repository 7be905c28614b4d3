// One side of a session: an authenticated, sealed connection between two processes of a cluster
// that detects the loss of its peer. It is a state machine: frames, time and messages in, frames
// and events out; it knows no clock, link or thread (SessionLink does). See handshake.hpp for the
// authentication and seal.hpp for the sealing.
//
// Before the peer is authenticated only the two frames of the handshake are accepted. Any invalid
// frame ends the session. Heartbeats go both ways: a silent peer becomes suspect and then lost,
// whether it is stopped, dead or cut off. The head chooses the timeout for both sides and announces
// it in its heartbeats.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/cluster/session/handshake.hpp"
#include "flow/transport.hpp"

namespace flow::cluster {

constexpr size_t kMessageBytesMax = kFrameBytesMax - 1 - kSealBytes;
constexpr size_t kReasonBytesMax = 512;  // of a goodbye

struct SessionOptions {
  Role role = Role::worker;
  std::string name;     // name of this process
  std::string version;  // version of flow
  uint32_t schema = 0;  // schema of the messages
  uint64_t epoch = 0;
  std::shared_ptr<const Secret> secret;  // null: no authentication; on loopback only
  int64_t handshake_ms = 5'000;
  int64_t heartbeat_ms = 1'000;
  int64_t suspect_after_ms = 3'000;
  int64_t lost_after_ms = 10'000;
  std::function<int64_t()> now_us = monotonic_us;  // the clock by which links run their sessions
};

/// Error (user) if an option is invalid.
Status check(const SessionOptions& options);
/// Sets the time after which a silent peer is lost, and matching heartbeat and suspicion intervals.
void set_lost_after(SessionOptions& options, int64_t lost_after_ms);

/// The peer's own description. With a secret it is authenticated that the peer holds the secret and
/// sent this description, but not that its name is right.
struct SessionPeer {
  Role role = Role::worker;
  std::string name, version;
  uint64_t epoch = 0;
  bool is_proven = false;
};

enum class EndKind : uint8_t {
  rejected,  ///< the peer has another secret or version: a retry would fail too
  damaged,   ///< a received frame differs from what the peer sent
  lost,      ///< nothing was received for too long, or the handshake took too long
  cut,       ///< the link went down
  left,      ///< the peer sent a goodbye
  ended,     ///< this side ended it
};

// Events of a session.
struct SessionOpened {
  SessionPeer peer;
};
struct MessageReceived {
  std::string bytes;
};
struct PeerSuspected {
  std::string why;
};
struct PeerRecovered {};
/// The head announced a different lost_after_ms; it applies from now on.
struct TimeoutChanged {
  int64_t lost_after_ms = 0;
};
struct SessionEnded {
  EndKind kind = EndKind::ended;
  Error why;
};
using SessionEvent = std::variant<SessionOpened, MessageReceived, PeerSuspected, PeerRecovered,
                                  TimeoutChanged, SessionEnded>;

/// The output of a step: frames to send, and then events to deliver, both in order.
struct SessionOutput {
  std::vector<std::string> frames;
  std::vector<SessionEvent> events;
};

/// Statistics for users. Times are in microseconds.
struct SessionCounters {
  uint64_t frames_in = 0, frames_out = 0, bytes_in = 0, bytes_out = 0;
  int64_t silent_us = 0;          // since the last received frame
  std::optional<int64_t> rtt_us;  // round trip, smoothed
};

/// One thread at a time.
class Session {
 public:
  /// Emits the HELLO and starts the handshake's timeout. `address`: the peer's, for messages.
  Session(const SessionOptions& options, std::string address, int64_t now_us, SessionOutput& out);

  void on_frame(std::string_view frame, int64_t now_us, SessionOutput& out);
  /// Call this several times per heartbeat. Time without calls does not count as silence of the
  /// peer, because this process may have been stopped.
  void tick(int64_t now_us, SessionOutput& out);
  /// Error before SessionOpened, after SessionEnded, or beyond kMessageBytesMax.
  Status send(std::string_view message, SessionOutput& out);
  /// Ends the session with a goodbye; `reason` is shown to users.
  void end(std::string_view reason, SessionOutput& out);
  void on_link_down(const Error& why, SessionOutput& out);

  bool is_open() const { return phase_ == Phase::open; }
  bool has_ended() const { return phase_ == Phase::ended; }
  const SessionCounters& counters() const { return counters_; }
  /// Requires an open session.
  BulkSeal bulk() const;

 private:
  enum class Phase : uint8_t { greeting, proving, open, ended };

  void pass_time(int64_t now_us);
  void on_hello(std::string_view frame, SessionOutput& out);
  void on_proof(std::string_view frame, SessionOutput& out);
  void on_sealed(std::string_view frame, SessionOutput& out);
  bool on_heartbeat(std::string_view heartbeat, SessionOutput& out);
  bool follow_head(uint64_t lost_after_ms, SessionOutput& out);
  void check_silence(SessionOutput& out);
  void send_heartbeat(SessionOutput& out);
  void put(std::string frame, SessionOutput& out);
  void put_sealed(FrameType type, std::string_view message, SessionOutput& out);
  void finish(EndKind kind, const std::string& why, SessionOutput& out);
  std::string end_text(EndKind kind, const std::string& why) const;
  std::string peer_text() const;

  SessionOptions options_;
  std::string address_;
  Phase phase_ = Phase::greeting;
  bool is_suspect_ = false;
  std::optional<Handshake> handshake_;  // until the session is open
  std::optional<Sealer> sealer_;        // from the received HELLO
  std::optional<Opener> opener_;        // from the received PROOF
  std::optional<BulkSeal> bulk_;
  SessionPeer peer_;
  int64_t now_us_ = 0;   // the last time that was passed in
  int64_t time_us_ = 1;  // time of this session, which advances only in calls
  int64_t received_us_ = 1, next_heartbeat_us_ = 0;
  int64_t their_stamp_ = 0, their_stamp_at_us_ = 0;
  SessionCounters counters_;
};

}  // namespace flow::cluster
