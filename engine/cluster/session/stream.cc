#include "engine/cluster/session/stream.hpp"

#include <algorithm>
#include <cstring>

#include "engine/cluster/session/byte_reader.hpp"
#include "flow/result.hpp"

namespace flow::cluster {

namespace {

enum Kind : uint8_t { kBytes = 1, kTaken = 2 };

}  // namespace

size_t Stream::room() const {
  return std::min(kStreamPieceMax, kStreamWindow - static_cast<size_t>(sent_ - taken_there_));
}

std::string Stream::put(std::string_view bytes) {
  FLOW_CHECK(!bytes.empty() && bytes.size() <= room());
  sent_ += bytes.size();
  std::string message(1, static_cast<char>(kBytes));
  message += bytes;
  return message;
}

bool Stream::on_message(std::string_view message) {
  Bytes in(message);
  switch (in.number<uint8_t>()) {
    case kBytes: {
      std::string_view bytes = message.substr(1);
      bool is_too_much = arrived_ - told_ + bytes.size() > kStreamWindow;
      if (bytes.empty() || bytes.size() > kStreamPieceMax || is_too_much) return false;
      arrived_ += bytes.size();
      came_ += bytes;
      return true;
    }
    case kTaken: {
      auto taken = in.number<uint64_t>();
      if (in.failed() || message.size() != 1 + sizeof taken || taken <= taken_there_ ||
          taken > sent_)
        return false;
      taken_there_ = taken;
      return true;
    }
    default:
      return false;
  }
}

size_t Stream::take(char* to, size_t size) {
  size_t taken = std::min(size, waiting());
  std::memcpy(to, came_.data() + began_, taken);
  began_ += taken;
  taken_ += taken;
  if (began_ == came_.size() || began_ >= kStreamTellAfter) {
    came_.erase(0, began_);
    began_ = 0;
  }
  return taken;
}

std::string Stream::tell_taken() {
  if (taken_ - told_ < kStreamTellAfter) return "";
  told_ = taken_;
  std::string message(1, static_cast<char>(kTaken));
  put_number(message, told_);
  return message;
}

}  // namespace flow::cluster
