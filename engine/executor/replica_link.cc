#include "engine/executor/replica_link.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/descriptor_message.hpp"
#include "engine/base/unix_socket.hpp"
#include "engine/protocol/frames.hpp"

namespace flow {

namespace {

constexpr size_t kBuffer = 64 * 1024;
constexpr size_t kPartsMax = 512;  // of one write; the system's limit is 1024
constexpr int64_t kDelayUsMin = 10'000, kDelayUsMax = 1'000'000;  // between two tries to join
constexpr int64_t kFirstDelayUsMax = 50'000;                      // while the front starts
constexpr int64_t kJoinedUs = 10'000'000;  // for the answer of a front that is joined again

/// Whether a short message can be sent without waiting for the peer to read.
bool can_write(int descriptor) {
  pollfd waited{descriptor, POLLOUT, 0};
  return ::poll(&waited, 1, 0) == 1 && (waited.revents & POLLOUT) != 0;
}

int ms_until(int64_t until_us) {
  int64_t left_us = std::max<int64_t>(0, until_us - monotonic_us());
  return static_cast<int>(std::min<int64_t>((left_us + 999) / 1000, 3'600'000));
}

}  // namespace

ReplicaLink::ReplicaLink(ReplicaOptions options)
    : options_(std::move(options)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      buffer_(kBuffer, '\0') {}

ReplicaLink::~ReplicaLink() {
  close();
  ::close(wake_);
}

void ReplicaLink::leave(int64_t grace_ms, bool is_replaced) {
  if (is_replaced && !is_leaving()) is_replaced_ = true;
  int64_t stays = kStays;
  if (leave_ms_.compare_exchange_strong(stays, std::max<int64_t>(0, grace_ms))) {
    // The thread of serve() looks for it after each batch; a call of predict may outlast the grace.
    // While that thread sends, it is not inside predict.
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && can_write(descriptor_)) send_leave();
  }
  wake();
}

void ReplicaLink::die() {
  int64_t stays = kStays;
  leave_ms_.compare_exchange_strong(stays, kDies);
  wake();
}

void ReplicaLink::wake() const {
  uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void ReplicaLink::close() {
  {
    std::lock_guard lock(mutex_);
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
    is_joined_ = false;
  }
  begin_ = end_ = 0;
  large_ = nullptr;
  for (int descriptor : std::exchange(descriptors_, {})) ::close(descriptor);
  memory_.clear();
}

Bytes ReplicaLink::next_frame(bool& broken) {
  if (large_ != nullptr) {
    if (large_bytes_ < large_size_) return {};
    std::shared_ptr<const void> keep = std::exchange(large_, nullptr);
    return {std::string_view(static_cast<const char*>(keep.get()), large_size_), keep};
  }
  uint32_t size = 0;
  if (end_ - begin_ < sizeof size) return {};
  std::memcpy(&size, buffer_.data() + begin_, sizeof size);
  broken = size > kFrameMax;
  if (broken) return {};
  size_t body = begin_ + sizeof size, there = end_ - body;
  if (there >= size) {
    begin_ = body + size;
    return std::make_shared<std::string>(buffer_, body, size);
  }
  if (size + sizeof size <= buffer_.size()) return {};
  large_ = std::make_shared_for_overwrite<char[]>(size);
  large_size_ = size;
  std::memcpy(large_.get(), buffer_.data() + body, there);
  large_bytes_ = there;
  begin_ = end_ = 0;
  return {};
}

bool ReplicaLink::read_some() {
  if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  char* to = large_ ? large_.get() + large_bytes_ : buffer_.data() + end_;
  size_t space = large_ ? large_size_ - large_bytes_ : buffer_.size() - end_;
  iovec part{to, space};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  DescriptorMessage attached;
  attached.prepare(message);
  ssize_t got;
  do got = ::recvmsg(descriptor_, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return false;
  attached.take(message, descriptors_);
  (large_ ? large_bytes_ : end_) += static_cast<size_t>(got);
  return true;
}

ReplicaLink::Received ReplicaLink::receive(Bytes& frame, int64_t until_us) {
  while (true) {
    bool broken = false;
    frame = next_frame(broken);
    if (frame != nullptr) return Received::frame;
    if (broken) return Received::closed;
    // poll ignores a negative descriptor.
    pollfd waited[] = {{descriptor_, POLLIN, 0}, {wake_, POLLIN, 0}};
    int ready = ::poll(waited, 2, until_us > 0 ? ms_until(until_us) : -1);
    if (ready < 0) continue;  // a signal
    if (ready == 0 && monotonic_us() >= until_us) return Received::timeout;
    if (waited[1].revents != 0) {
      uint64_t drained;
      (void)!::read(wake_, &drained, sizeof drained);
      return Received::woken;
    }
    if (waited[0].revents != 0 && !read_some()) return Received::closed;
  }
}

bool ReplicaLink::send(const front::ToFront& message) {
  std::string out;
  append_frame(out, message);
  return send({std::make_shared<std::string>(std::move(out))});
}

bool ReplicaLink::send(const FramePieces& pieces) {
  std::lock_guard lock(mutex_);
  return send_pieces(pieces);
}

bool ReplicaLink::send_pieces(const FramePieces& pieces) {
  std::vector<iovec> parts;
  for (const Bytes& piece : pieces)
    if (!piece->empty()) parts.push_back({const_cast<char*>(piece->data()), piece->size()});
  for (size_t first = 0; first < parts.size();) {
    msghdr message{};
    message.msg_iov = &parts[first];
    message.msg_iovlen = std::min(kPartsMax, parts.size() - first);
    ssize_t written = ::sendmsg(descriptor_, &message, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    for (auto left = static_cast<size_t>(written); left > 0;) {
      size_t taken = std::min(left, parts[first].iov_len);
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + taken;
      parts[first].iov_len -= taken;
      left -= taken;
      if (parts[first].iov_len == 0) first++;
    }
  }
  return true;
}

Status ReplicaLink::connect() {
  close();
  auto connected = connect_unix(options_.folder + "/front.sock");
  FLOW_TRY(connected);
  {
    std::lock_guard lock(mutex_);
    descriptor_ = *connected;
  }
  if (peer_of(descriptor_) == 0)
    return environment_error(
        fmt::format("the front at `{}` belongs to another user", options_.folder));
  front::ToFront message;
  *message.mutable_join() = options_.join;
  if (!send(message)) return environment_error("the front closed the connection");
  return {};
}

Status ReplicaLink::await_admitted(int64_t until_us, bool& again) {
  Bytes frame;
  again = true;
  while (true) {
    switch (receive(frame, until_us)) {
      case Received::closed:  // it ends, and the next one will answer
        return Error{ErrorKind::interrupted, "the front closed the connection"};
      case Received::timeout:
        return environment_error("the front did not answer");
      case Received::woken:
        again = false;
        if (is_leaving()) return Error{ErrorKind::interrupted, "the service was stopped"};
        again = true;
        continue;
      case Received::frame:
        break;
    }
    front::FromFront message;
    if (!message.ParseFromArray(frame->data(), static_cast<int>(frame->size())))
      return environment_error("the front sent bytes that are no message");
    if (message.has_rejected()) {
      again = false;
      return user_error(message.rejected().message());
    }
    if (!message.has_admitted()) continue;
    joined_us_ = monotonic_us();
    {
      std::lock_guard lock(mutex_);
      is_joined_ = true;
    }
    if (std::exchange(url_, message.admitted().url()) != url_) options_.on_url(url_);
    return {};
  }
}

Status ReplicaLink::join() {
  int64_t until_us = monotonic_us() + options_.connect_ms * 1000;
  int64_t delay_us = kDelayUsMin;
  while (true) {
    bool again = true;
    Status joined = connect();
    if (joined.ok()) joined = await_admitted(until_us, again);
    if (joined.ok()) return {};
    close();
    if (!again) return joined;
    if (joined.error().kind == ErrorKind::interrupted)
      until_us = monotonic_us() + options_.connect_ms * 1000;
    if (monotonic_us() >= until_us)
      return environment_error(
          fmt::format("its front did not answer within {} s ({}); `{}/front.log` may say why",
                      options_.connect_ms / 1000, joined.error().message, options_.folder));
    Bytes none;
    receive(none, std::min(until_us, monotonic_us() + delay_us));
    if (is_leaving()) return Error{ErrorKind::interrupted, "the service was stopped"};
    delay_us = std::min(delay_us * 2, kFirstDelayUsMax);
  }
}

Status ReplicaLink::join_again(const std::function<void()>& on_wake) {
  close();
  options_.log("the front of the service has ended: the service joins the next one");
  // A front that ends at once must not be joined in a loop without pause.
  if (monotonic_us() - joined_us_ > kDelayUsMax) delay_us_ = 0;
  while (!is_leaving()) {
    int64_t until_us = monotonic_us() + delay_us_;
    Bytes none;
    while (delay_us_ > 0 && receive(none, until_us) != Received::timeout) {
      if (is_leaving()) return {};
      if (on_wake) on_wake();
    }
    delay_us_ = std::clamp(delay_us_ * 2, kDelayUsMin, kDelayUsMax);
    bool again = true;
    Status joined = connect();
    if (joined.ok()) joined = await_admitted(monotonic_us() + kJoinedUs, again);
    if (on_wake) on_wake();  // await_admitted may have seen the call
    if (joined.ok()) return {};
    close();
    if (!again) return is_leaving() ? Status() : joined;
  }
  return {};
}

void ReplicaLink::send_leave() {
  if (!is_joined_ || std::exchange(has_sent_leave_, true)) return;
  leave_until_us_ = monotonic_us() + leave_ms_ * 1000;
  front::ToFront message;
  message.mutable_leave()->set_grace_ms(leave_ms_);
  message.mutable_leave()->set_is_replaced(is_replaced_);
  std::string out;
  append_frame(out, message);
  // If it fails, the next receive() finds that the front is gone.
  send_pieces({std::make_shared<std::string>(std::move(out))});
}

/// The front ends its side once it has seen the end of this one.
void ReplicaLink::read_rest() {
  constexpr int64_t kRestUs = 1'000'000;
  int64_t until_us = monotonic_us() + kRestUs;
  ::shutdown(descriptor_, SHUT_WR);
  for (Bytes frame; monotonic_us() < until_us;) {
    Received received = receive(frame, until_us);
    if (received == Received::closed) return;
    front::FromFront message;
    if (received != Received::frame ||
        !message.ParseFromArray(frame->data(), static_cast<int>(frame->size())))
      continue;
    for (const std::string& line : message.log().lines()) options_.log(line);
  }
}

void ReplicaLink::renew(front::Join join) {
  options_.join = std::move(join);
  if (descriptor_ < 0) return;  // the next front gets it
  front::ToFront message;
  *message.mutable_join() = options_.join;
  send(message);  // the next receive() finds that the front is gone
}

Status ReplicaLink::serve(const Predict& predict, const std::function<void()>& on_wake) {
  Bytes frame;
  while (!is_released_) {
    const int64_t asked = leave_ms_;
    if (asked == kDies) {
      read_rest();
      return {};
    }
    if (asked != kStays) {
      std::lock_guard lock(mutex_);
      send_leave();
    }
    bool is_open = true;
    switch (receive(frame, leave_until_us_)) {
      case Received::timeout:
        return {};
      case Received::woken:
        if (on_wake) on_wake();
        continue;
      case Received::closed:
        is_open = false;
        break;
      case Received::frame:
        is_open = handle(frame, predict);
        break;
    }
    if (is_open) continue;
    if (is_leaving()) return {};
    FLOW_TRY(join_again(on_wake));
    if (descriptor_ < 0) return {};  // it was asked to leave
  }
  return {};
}

bool ReplicaLink::handle(const Bytes& frame, const Predict& predict) {
  auto batch = parse_batch(frame, [this](uint64_t id) { return memory_.inputs(id); });
  if (!batch.ok()) return false;
  if (batch->has_value()) return answer(std::move(**batch), predict);
  front::FromFront message;
  if (!message.ParseFromArray(frame->data(), static_cast<int>(frame->size()))) return false;
  if (message.has_memory() || message.has_memory_released()) return take_memory(message);
  for (const std::string& line : message.log().lines()) options_.log(line);
  is_released_ = message.has_released() && is_leaving();
  return is_released_ || !message.has_released();  // a front that was ended releases all
}

bool ReplicaLink::answer(BatchMessage batch, const Predict& predict) {
  for (auto& [name, tensor] : batch.inputs)
    if (tensor.data->size() < FrontMemory::kLentBytesMin)
      tensor.data = Bytes(*tensor.data, tensor.data.keep());
  FramePieces pieces;
  {
    ResponseParameters parameters;
    Result<Tensors> outputs = predict(batch, parameters);
    batch.inputs.clear();
    std::optional<TensorMemory> memory;
    uint64_t bytes = outputs.ok() ? memory_bytes({&*outputs}) : 0;
    if (bytes >= kSharedBytesMin) memory = memory_.take_outputs(bytes);
    pieces = outcome_frame(batch.id, outputs, memory, parameters);
  }
  if (!release(memory_.take_released()) || !send(pieces)) return false;
  pieces.clear();
  if (!memory_.is_held()) return true;
  if (options_.collect) options_.collect();
  return release(memory_.reclaim());
}

bool ReplicaLink::release(const std::vector<uint64_t>& inputs) {
  if (inputs.empty()) return true;
  front::ToFront message;
  message.mutable_memory_released()->mutable_ids()->Add(inputs.begin(), inputs.end());
  return send(message);
}

bool ReplicaLink::take_memory(const front::FromFront& message) {
  for (uint64_t id : message.memory_released().ids()) memory_.return_outputs(id);
  if (!message.has_memory()) return true;
  const front::Memory& memory = message.memory();
  int descriptor = -1;
  if (!descriptors_.empty()) {
    descriptor = descriptors_.front();
    descriptors_.pop_front();
  }
  // Without an answer the front sends tensors in frames.
  if (!memory_
           .add(memory.id(), memory.size(), memory.is_for_outputs(), memory.replaces(), descriptor)
           .ok())
    return true;
  front::ToFront answer;
  answer.mutable_memory_mapped()->set_id(memory.id());
  return send(answer);
}

}  // namespace flow
