#include "engine/cluster/session/session.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/cluster/session/byte_reader.hpp"
#include "engine/value/utf8.hpp"

namespace flow::cluster {

namespace {

constexpr int64_t kDayMs = 86'400'000;
constexpr int kRttWeight = 8;  // a new measurement counts an eighth
// Fractions of the time after which a peer is lost; capped at those for ten seconds.
constexpr int64_t kHeartbeatsPerLoss = 10, kSuspectTenths = 3;
constexpr int64_t kHeartbeatMsMax = 1'000;

std::string seconds(int64_t us) { return fmt::format("{:.1f} s", static_cast<double>(us) / 1e6); }

// A line of text from another process.
std::string line_of(std::string_view text) { return to_line(text.substr(0, kReasonBytesMax)); }

}  // namespace

Status check(const SessionOptions& options) {
  if (!is_process_name(options.name))
    return user_error(fmt::format(
        "`{}` is not a valid name of a worker: 1 to {} letters, digits, `.`, `_`, `-` and `+`",
        line_of(options.name), kProcessNameBytesMax));
  if (options.heartbeat_ms < 1 || options.handshake_ms < 1 || options.lost_after_ms > kDayMs ||
      options.handshake_ms > kDayMs || options.suspect_after_ms <= options.heartbeat_ms ||
      options.lost_after_ms < options.suspect_after_ms)
    return user_error(fmt::format(
        "a peer can't be suspect after {} ms and lost after {} ms with a heartbeat each {} ms and "
        "{} ms "
        "for the handshake: each is at least 1 ms, and heartbeat < suspect <= lost <= a day",
        options.suspect_after_ms, options.lost_after_ms, options.heartbeat_ms,
        options.handshake_ms));
  return {};
}

void set_lost_after(SessionOptions& options, int64_t lost_after_ms) {
  options.lost_after_ms = lost_after_ms;
  options.heartbeat_ms = std::min(kHeartbeatMsMax, lost_after_ms / kHeartbeatsPerLoss);
  options.suspect_after_ms = kSuspectTenths * options.heartbeat_ms;
}

Session::Session(const SessionOptions& options, std::string address, int64_t now_us,
                 SessionOutput& out)
    : options_(options), address_(std::move(address)), now_us_(now_us) {
  FLOW_CHECK(check(options).ok());
  SessionHello ours;
  ours.version = options.version;
  ours.schema = options.schema;
  ours.role = options.role;
  ours.epoch = options.epoch;
  ours.name = options.name;
  handshake_.emplace(std::move(ours), options_.secret);
  put(handshake_->hello(), out);
}

void Session::on_frame(std::string_view frame, int64_t now_us, SessionOutput& out) {
  pass_time(now_us);
  if (phase_ == Phase::ended) return;
  counters_.frames_in++;
  counters_.bytes_in += frame.size();
  switch (phase_) {
    case Phase::greeting:
      return on_hello(frame, out);
    case Phase::proving:
      return on_proof(frame, out);
    default:
      return on_sealed(frame, out);
  }
}

void Session::on_hello(std::string_view frame, SessionOutput& out) {
  if (frame.size() > kHandshakeBytesMax)
    return finish(
        EndKind::rejected,
        fmt::format("it began with {} bytes, which are not a greeting of flow", frame.size()), out);
  auto theirs = handshake_->accept_hello(frame);
  if (!theirs.ok()) return finish(EndKind::rejected, theirs.error().message, out);
  peer_ = {theirs->role, theirs->name, theirs->version, theirs->epoch, theirs->has_secret};
  sealer_.emplace(handshake_->keys().seal_out);
  put(handshake_->proof(sealer_->header()), out);
  phase_ = Phase::proving;
}

void Session::on_proof(std::string_view frame, SessionOutput& out) {
  auto header = handshake_->accept_proof(frame);
  if (!header.ok()) return finish(EndKind::rejected, header.error().message, out);
  const LinkKeys& keys = handshake_->keys();
  opener_.emplace(keys.seal_in, *header);
  bulk_.emplace(keys.bulk_out, keys.bulk_in);
  handshake_.reset();
  phase_ = Phase::open;
  received_us_ = time_us_;
  out.events.emplace_back(SessionOpened{peer_});
  send_heartbeat(out);
}

void Session::on_sealed(std::string_view frame, SessionOutput& out) {
  std::string message;
  if (!opener_->open(frame, message))
    return finish(EndKind::damaged,
                  "the received frame is not the next one that it encrypted: on the way a frame "
                  "was changed, dropped, repeated, reordered or forged",
                  out);
  received_us_ = time_us_;
  counters_.silent_us = 0;
  if (is_suspect_) out.events.emplace_back(PeerRecovered{});
  is_suspect_ = false;
  switch (static_cast<FrameType>(frame[0])) {
    case FrameType::message:
      out.events.emplace_back(MessageReceived{std::move(message)});
      return;
    case FrameType::heartbeat:
      if (on_heartbeat(message, out)) return;
      break;
    case FrameType::goodbye:
      return finish(EndKind::left, line_of(message), out);
    default:
      break;
  }
  finish(EndKind::damaged,
         fmt::format("it sent a frame of type {} and {} bytes, which this version does not know",
                     static_cast<int>(static_cast<uint8_t>(frame[0])), message.size()),
         out);
}

// A heartbeat is [stamp, the peer's newest stamp, the age of that stamp, lost_after_ms]. The
// receiver computes the round-trip time from its own stamp.
void Session::send_heartbeat(SessionOutput& out) {
  std::string heartbeat;
  put_number(heartbeat, static_cast<uint64_t>(time_us_));
  put_number(heartbeat, static_cast<uint64_t>(their_stamp_));
  put_number(heartbeat, static_cast<uint64_t>(time_us_ - their_stamp_at_us_));
  put_number(heartbeat, static_cast<uint64_t>(options_.lost_after_ms));
  put_sealed(FrameType::heartbeat, heartbeat, out);
  next_heartbeat_us_ = time_us_ + options_.heartbeat_ms * 1000;
}

bool Session::on_heartbeat(std::string_view heartbeat, SessionOutput& out) {
  ByteReader in(heartbeat);
  auto stamp = in.number<uint64_t>(), ours = in.number<uint64_t>(), held = in.number<uint64_t>();
  if (in.failed()) return false;
  // An older head does not announce it.
  bool is_followed = peer_.role == Role::head && !in.is_empty();
  if (is_followed && !follow_head(in.number<uint64_t>(), out)) return false;
  their_stamp_ = static_cast<int64_t>(stamp);
  their_stamp_at_us_ = time_us_;
  auto now = static_cast<uint64_t>(time_us_);
  if (ours == 0 || ours > now || held > now - ours) return true;
  auto rtt_us = static_cast<int64_t>(now - ours - held);
  int64_t before = counters_.rtt_us.value_or(rtt_us);
  counters_.rtt_us = before + (rtt_us - before) / kRttWeight;
  return true;
}

bool Session::follow_head(uint64_t lost_after_ms, SessionOutput& out) {
  if (lost_after_ms == static_cast<uint64_t>(options_.lost_after_ms)) return true;
  if (lost_after_ms > static_cast<uint64_t>(kDayMs)) return false;
  SessionOptions as_head = options_;
  set_lost_after(as_head, static_cast<int64_t>(lost_after_ms));
  if (!check(as_head).ok()) return false;
  options_ = as_head;
  next_heartbeat_us_ = std::min(next_heartbeat_us_, time_us_ + options_.heartbeat_ms * 1000);
  out.events.emplace_back(TimeoutChanged{options_.lost_after_ms});
  return true;
}

// No step counts for more than a heartbeat: after a longer pause this process itself did not run,
// and frames from the peer may still be unread. A clock that steps back counts as 0.
void Session::pass_time(int64_t now_us) {
  auto step_max = static_cast<uint64_t>(options_.heartbeat_ms) * 1000;
  if (now_us > now_us_) {
    uint64_t passed = static_cast<uint64_t>(now_us) - static_cast<uint64_t>(now_us_);
    time_us_ += static_cast<int64_t>(std::min(passed, step_max));
  }
  now_us_ = now_us;
}

void Session::tick(int64_t now_us, SessionOutput& out) {
  pass_time(now_us);
  if (phase_ == Phase::ended) return;
  counters_.silent_us = time_us_ - received_us_;
  if (phase_ != Phase::open) {
    if (time_us_ > options_.handshake_ms * 1000)
      finish(EndKind::lost,
             "it did not prove that it holds the secret within " +
                 seconds(options_.handshake_ms * 1000),
             out);
    return;
  }
  check_silence(out);
  if (phase_ == Phase::open && time_us_ >= next_heartbeat_us_) send_heartbeat(out);
}

void Session::check_silence(SessionOutput& out) {
  int64_t silent_us = time_us_ - received_us_;
  if (silent_us >= options_.lost_after_ms * 1000)
    return finish(EndKind::lost, seconds(silent_us), out);
  if (is_suspect_ || silent_us < options_.suspect_after_ms * 1000) return;
  is_suspect_ = true;
  out.events.emplace_back(PeerSuspected{
      fmt::format("nothing was received from {} for {}", peer_text(), seconds(silent_us))});
}

Status Session::send(std::string_view message, SessionOutput& out) {
  if (phase_ == Phase::ended)
    return environment_error("the session with " + peer_text() + " has ended");
  if (phase_ != Phase::open)
    return environment_error("the session with " + peer_text() + " is not open yet");
  if (message.size() > kMessageBytesMax)
    return environment_error(
        fmt::format("a message of {} bytes is longer than the limit of a frame: {}", message.size(),
                    kMessageBytesMax));
  put_sealed(FrameType::message, message, out);
  return {};
}

void Session::end(std::string_view reason, SessionOutput& out) {
  if (phase_ == Phase::ended) return;
  if (phase_ == Phase::open) put_sealed(FrameType::goodbye, reason.substr(0, kReasonBytesMax), out);
  finish(EndKind::ended, line_of(reason), out);
}

void Session::on_link_down(const Error& why, SessionOutput& out) {
  bool is_rejection = !bulk_ && why.kind == ErrorKind::user;
  if (phase_ != Phase::ended)
    finish(is_rejection ? EndKind::rejected : EndKind::cut, why.message, out);
}

BulkSeal Session::bulk() const {
  FLOW_CHECK(bulk_.has_value());
  return *bulk_;
}

void Session::put(std::string frame, SessionOutput& out) {
  counters_.frames_out++;
  counters_.bytes_out += frame.size();
  out.frames.push_back(std::move(frame));
}

void Session::put_sealed(FrameType type, std::string_view message, SessionOutput& out) {
  put(sealer_->seal(static_cast<uint8_t>(type), message), out);
}

void Session::finish(EndKind kind, const std::string& why, SessionOutput& out) {
  Error error = environment_error(end_text(kind, why));
  phase_ = Phase::ended;
  handshake_.reset();
  sealer_.reset();
  opener_.reset();
  out.events.emplace_back(SessionEnded{kind, std::move(error)});
}

std::string Session::end_text(EndKind kind, const std::string& why) const {
  std::string peer = peer_text();
  if (!bulk_) return fmt::format("no session with {}: {}", peer, why);
  switch (kind) {
    case EndKind::lost:
      return fmt::format(
          "nothing was received from {} for {}: its process is stopped, its machine is down, or "
          "the network between is cut",
          peer, why);
    case EndKind::cut:
      return fmt::format("the link to {} broke without a goodbye: {}", peer, why);
    case EndKind::left:
      return fmt::format("{} has left: {}", peer, why);
    case EndKind::ended:
      return fmt::format("the session with {} was ended: {}", peer, why);
    default:
      return fmt::format("the session with {} can no longer be trusted: {}", peer, why);
  }
}

// The name is not trusted before the peer is authenticated.
std::string Session::peer_text() const {
  if (!bulk_) return address_;
  return fmt::format("node `{}` at {}", peer_.name, address_);
}

}  // namespace flow::cluster
