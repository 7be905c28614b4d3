#include "engine/relay/stream_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

namespace flow::cluster {

namespace {

constexpr char kNote = 3;  // first byte of a message; those of ByteStream are 1 and 2

void append_length(std::string& out, size_t size) {
  auto length = static_cast<uint32_t>(size);
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
}

}  // namespace

StreamSession::StreamSession(const SessionOptions& options, const std::string& address,
                             int64_t now_us)
    : now_us_(now_us) {
  SessionOutput out;
  session_.emplace(options, address, now_us, out);
  apply(std::move(out));
}

void StreamSession::receive(std::string_view bytes, int64_t now_us) {
  now_us_ = now_us;
  // Piece by piece, so that what is kept is bounded by one frame.
  while (!bytes.empty() && !has_ended()) {
    size_t taken = std::min(bytes.size(), kStreamChunkMax);
    in_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    while (!has_ended() && take_frame()) {
    }
  }
}

/// Returns false if the next frame is not complete.
bool StreamSession::take_frame() {
  uint32_t size = 0;
  if (in_.size() < sizeof size) return false;
  std::memcpy(&size, in_.data(), sizeof size);
  size_t most = is_open() ? kStreamFrameMax : kHandshakeBytesMax;
  if (size > most) {
    cut(fmt::format(
        "it announced a frame of {} bytes, and {} are allowed here: is another program at that "
        "address?",
        size, most));
    return false;
  }
  if (in_.size() < sizeof size + size) return false;
  SessionOutput out;
  session_->on_frame(std::string_view(in_).substr(sizeof size, size), now_us_, out);
  in_.erase(0, sizeof size + size);
  apply(std::move(out));
  return true;
}

void StreamSession::tick(int64_t now_us) {
  now_us_ = now_us;
  SessionOutput out;
  session_->tick(now_us, out);
  apply(std::move(out));
}

void StreamSession::end(std::string_view reason) {
  SessionOutput out;
  session_->end(reason, out);
  apply(std::move(out));
}

void StreamSession::cut(const std::string& why) {
  SessionOutput out;
  session_->on_link_down(environment_error(why), out);
  apply(std::move(out));
}

size_t StreamSession::window() const { return is_open() ? stream_.window() : 0; }

void StreamSession::write(std::string_view bytes) {
  SessionOutput out;
  Status sent = session_->send(stream_.put(bytes), out);
  FLOW_CHECK(sent.ok());
  apply(std::move(out));
}

size_t StreamSession::read(char* to, size_t size) {
  size_t taken = stream_.read(to, size);
  if (!is_open()) return taken;
  std::string ack = stream_.next_ack();
  if (ack.empty()) return taken;
  SessionOutput out;
  Status sent = session_->send(ack, out);
  FLOW_CHECK(sent.ok());
  apply(std::move(out));
  return taken;
}

void StreamSession::tell(std::string_view note) {
  FLOW_CHECK(!note.empty() && note.size() <= kNoteBytesMax);
  SessionOutput out;
  Status sent = session_->send(std::string(1, kNote) + std::string(note), out);
  FLOW_CHECK(sent.ok());
  apply(std::move(out));
}

std::vector<std::string> StreamSession::take_notes() { return std::exchange(notes_, {}); }

bool StreamSession::on_message(std::string_view message) {
  if (message.empty() || message[0] != kNote) return stream_.on_message(message);
  std::string_view note = message.substr(1);
  if (note.empty() || note.size() > kNoteBytesMax) return false;
  notes_.emplace_back(note);
  return true;
}

std::string StreamSession::take_output() { return std::exchange(out_, {}); }

void StreamSession::apply(SessionOutput out) {
  for (const std::string& frame : out.frames) {
    append_length(out_, frame.size());
    out_ += frame;
  }
  for (SessionEvent& event : out.events) {
    if (auto* opened = std::get_if<SessionOpened>(&event)) peer_ = std::move(opened->peer);
    if (auto* ended = std::get_if<SessionEnded>(&event)) end_ = std::move(*ended);
    auto* message = std::get_if<MessageReceived>(&event);
    if (message == nullptr || on_message(message->bytes)) continue;
    return end("the received bytes are not a message of a stream");
  }
}

}  // namespace flow::cluster
