// One side of a session: what makes a link between two processes of a cluster trustworthy and its
// death visible. A state machine: frames, time and messages in, frames and events out; it knows no
// clock, link or thread (SessionLink does). handshake.hpp says how the peer is proven, seal.hpp how
// frames are sealed.
//
// Nothing but the two frames of the handshake is taken before the peer is proven; what is wrong in
// any way ends the session, and nothing comes from it after that. Heartbeats go both ways: a peer
// that says nothing for some time is suspect, then lost, be it stopped, dead or cut off. How long
// that is a head decides for both sides, and says in its heartbeats.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/cluster/session/handshake.hpp"
#include "flow/transport.hpp"

namespace flow::cluster {

constexpr size_t kMessageBytesMax = kFrameBytesMax - 1 - kSealBytes;
constexpr size_t kReasonBytesMax = 512;  // of a goodbye

struct SessionOptions {
  Role role = Role::worker;
  std::string name;     // this one's name
  std::string version;  // of flow
  uint32_t schema = 0;  // of the messages
  uint64_t epoch = 0;
  std::shared_ptr<const Secret> secret;  // null: nobody is proven; for loopback alone
  int64_t handshake_ms = 5'000;
  int64_t heartbeat_ms = 1'000;
  int64_t suspect_after_ms = 3'000;
  int64_t lost_after_ms = 10'000;
};

/// A user's mistake in them.
Status check(const SessionOptions& options);
/// A peer is lost after so long; heartbeats and suspicion come soon enough for that.
void set_lost_after(SessionOptions& options, int64_t lost_after_ms);

/// Who is at the other end. With a secret it is proven that the peer holds it, and that it says
/// this of itself; not that it is the node of that name.
struct SessionPeer {
  Role role = Role::worker;
  std::string name, version;
  uint64_t epoch = 0;
  bool is_proven = false;
};

enum class EndKind : uint8_t {
  rejected,  ///< the peer is not one of ours, or of another version: the next try will be no better
  damaged,   ///< something came that is not what the peer sent
  lost,      ///< nothing came for too long, or the handshake took too long
  cut,       ///< the link went down
  left,      ///< the peer said goodbye
  ended,     ///< this side did
};

// What a session tells.
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
/// The peer is a head, for whom lost_after_ms is another than it was here: it is this from now on.
struct TimeoutChanged {
  int64_t lost_after_ms = 0;
};
struct SessionEnded {
  EndKind kind = EndKind::ended;
  Error why;
};
using SessionEvent = std::variant<SessionOpened, MessageReceived, PeerSuspected, PeerRecovered,
                                  TimeoutChanged, SessionEnded>;

/// What came of a step: frames to be sent in this order, then what is to be told in this one.
struct SessionOutput {
  std::vector<std::string> frames;
  std::vector<SessionEvent> events;
};

/// For people. Times are in microseconds.
struct SessionCounters {
  uint64_t frames_in = 0, frames_out = 0, bytes_in = 0, bytes_out = 0;
  int64_t silent_us = 0;          // since something was heard
  std::optional<int64_t> rtt_us;  // there and back, smoothed
};

/// One thread at a time.
class Session {
 public:
  /// `address` of the peer, for people. The HELLO goes out; the time to the end of the handshake
  /// runs.
  Session(const SessionOptions& options, std::string address, int64_t now_us, SessionOutput& out);

  void on_frame(std::string_view frame, int64_t now_us, SessionOutput& out);
  /// A few times in each heartbeat. Time in which nobody called does not count as silence: this
  /// process may have been stopped itself.
  void tick(int64_t now_us, SessionOutput& out);
  /// Refused before Opened, after Ended, and beyond kMessageBytesMax.
  Status send(std::string_view message, SessionOutput& out);
  /// Says goodbye. `reason` is for people.
  void end(std::string_view reason, SessionOutput& out);
  void on_link_down(const Error& why, SessionOutput& out);

  bool is_open() const { return phase_ == Phase::open; }
  bool has_ended() const { return phase_ == Phase::ended; }
  const SessionCounters& counters() const { return counters_; }
  /// Of an open session.
  BulkSeal bulk() const;

 private:
  enum class Phase : uint8_t { greeting, proving, open, ended };

  void pass_time(int64_t now_us);
  void on_hello(std::string_view frame, SessionOutput& out);
  void on_proof(std::string_view frame, SessionOutput& out);
  void on_sealed(std::string_view frame, SessionOutput& out);
  bool take_heartbeat(std::string_view heartbeat, SessionOutput& out);
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
  std::optional<Sealer> sealer_;        // from the HELLO that came
  std::optional<Opener> opener_;        // from the PROOF that came
  std::optional<BulkSeal> bulk_;
  SessionPeer peer_;
  int64_t now_us_ = 0;   // as we were told
  int64_t time_us_ = 1;  // of this session: passes where it is looked after
  int64_t received_us_ = 1, next_heartbeat_us_ = 0;
  int64_t their_stamp_ = 0, their_stamp_at_us_ = 0;
  SessionCounters counters_;
};

}  // namespace flow::cluster
