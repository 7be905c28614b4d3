#include "engine/cluster/session/byte_stream.hpp"

#include <algorithm>
#include <cstring>

#include "engine/cluster/session/byte_reader.hpp"
#include "flow/result.hpp"

namespace flow::cluster {

namespace {

enum StreamMessage : uint8_t { kBytes = 1, kAck = 2 };

}  // namespace

size_t ByteStream::window() const {
  return std::min(kStreamChunkMax, kStreamWindow - static_cast<size_t>(sent_ - peer_acked_));
}

std::string ByteStream::put(std::string_view bytes) {
  FLOW_CHECK(!bytes.empty() && bytes.size() <= window());
  sent_ += bytes.size();
  std::string message(1, static_cast<char>(kBytes));
  message += bytes;
  return message;
}

bool ByteStream::on_message(std::string_view message) {
  ByteReader in(message);
  switch (in.number<uint8_t>()) {
    case kBytes: {
      std::string_view bytes = message.substr(1);
      bool is_too_much = arrived_ - acked_ + bytes.size() > kStreamWindow;
      if (bytes.empty() || bytes.size() > kStreamChunkMax || is_too_much) return false;
      arrived_ += bytes.size();
      received_ += bytes;
      return true;
    }
    case kAck: {
      auto taken = in.number<uint64_t>();
      if (in.failed() || message.size() != 1 + sizeof taken || taken <= peer_acked_ ||
          taken > sent_)
        return false;
      peer_acked_ = taken;
      return true;
    }
    default:
      return false;
  }
}

size_t ByteStream::read(char* to, size_t size) {
  size_t taken = std::min(size, waiting());
  std::memcpy(to, received_.data() + began_, taken);
  began_ += taken;
  read_ += taken;
  if (began_ == received_.size() || began_ >= kStreamAckAfter) {
    received_.erase(0, began_);
    began_ = 0;
  }
  return taken;
}

std::string ByteStream::next_ack() {
  if (read_ - acked_ < kStreamAckAfter) return "";
  acked_ = read_;
  std::string message(1, static_cast<char>(kAck));
  put_number(message, acked_);
  return message;
}

}  // namespace flow::cluster
