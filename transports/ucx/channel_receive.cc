// Receiving: frames, puts, and the peer's outcomes of puts.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "transports/ucx/channel.hpp"

namespace flow::ucx {

namespace {

// A quarter of the peer's window.
constexpr size_t kAckBytes = size_t{1} << 18;
constexpr uint32_t kAckChunks = 256;
constexpr size_t kFrameBufferBytes = size_t{1} << 20;  // frame memory that is kept for the next one

}  // namespace

void Channel::on_eager(const Head& head, const char* data, size_t size) {
  if (is_ending()) return;
  if (head.sequence != peer_sequence_++) return fail("UCX lost or reordered messages");
  if (head.kind != MessageKind::hello && !has_hello_)
    return fail("its peer did not begin with a handshake");
  if (!receive_ack(head)) return fail("its peer acknowledged data that was not sent");
  switch (head.kind) {
    case MessageKind::hello:
      return receive_hello(data, size);
    case MessageKind::chunk:
      return receive_chunk(head, data, size);
    case MessageKind::put_begin:
      return begin_put(head, data, size);
    case MessageKind::put_chunk:
      return receive_put_chunk(head, data, size);
    case MessageKind::put_done:
      return answered(head.id, head.outcome);
    case MessageKind::ack:
      return;
    case MessageKind::goodbye:
      return fail(fmt::format("the peer {} closed the link", address_));
  }
  fail("its peer sent something unknown");
}

bool Channel::receive_ack(const Head& head) {
  uint64_t bytes = head.acked_bytes - acked_bytes_;
  uint32_t chunks = head.acked_chunks - acked_chunks_;
  if (bytes > sent_bytes_ - acked_bytes_ || chunks > sent_chunks_ - acked_chunks_) return false;
  if (chunks == 0) return true;
  acked_bytes_ = head.acked_bytes;
  acked_chunks_ = head.acked_chunks;
  unsent -= std::min<size_t>(unsent, bytes);
  is_moving_ = true;
  if (!queue_.empty() || !posting_.empty() || closing_us_ != 0) ucx_thread_.schedule(*this);
  return true;
}

void Channel::count_received(size_t bytes) {
  received_bytes_ += bytes;
  received_chunks_++;
  must_send_ack_ = received_bytes_ - advertised_bytes_ >= kAckBytes ||
                   received_chunks_ - advertised_chunks_ >= kAckChunks;
  if (must_send_ack_) return ucx_thread_.schedule(*this);
  ucx_thread_.add_pending_ack(*this);
}

void Channel::answer(uint32_t id, PutOutcome outcome) {
  put_outcomes_.emplace_back(id, outcome);
  ucx_thread_.schedule(*this);
}

void Channel::receive_chunk(const Head& head, const char* data, size_t size) {
  count_received(size);
  if (frame_left_ == 0 && head.value == size) return handler_->on_frame({data, size});
  if (frame_left_ == 0) {
    if (head.value > kFrameBytesMax) return fail("its peer sent a frame that is too long");
    frame_.reserve(head.value);
    frame_left_ = head.value;
  }
  if (size == 0 || size > frame_left_ || head.value != frame_.size() + frame_left_)
    return fail("its peer sent a chunk without a frame");
  frame_.append(data, size);
  frame_left_ -= size;
  if (frame_left_ > 0) return;
  handler_->on_frame(frame_);
  frame_.clear();
  if (frame_.capacity() > kFrameBufferBytes) frame_.shrink_to_fit();
}

Status Channel::post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) {
  std::lock_guard lock(mutex_);
  const char* why = is_receiving_closed_ ? "the link is down"
                    : to.is_device && !ucx_thread_.takes_device_memory
                        ? "UCX here does not support GPU memory"
                    : posted_receives_.contains(tag) ? "the tag has a receive posted already"
                                                     : nullptr;
  if (why != nullptr)
    return environment_error(fmt::format("cannot receive a put of tag {}: {}", tag, why));
  posted_receives_.emplace(tag, UcxReceive{to, std::move(done)});
  return {};
}

std::unique_ptr<UcxReceive> Channel::forget(uint64_t tag) {
  std::lock_guard lock(mutex_);
  auto found = posted_receives_.find(tag);
  if (found == posted_receives_.end()) return nullptr;
  auto posted_receive = std::make_unique<UcxReceive>(std::move(found->second));
  posted_receives_.erase(found);
  return posted_receive;
}

void Channel::cancel_receive(uint64_t tag) {
  std::unique_ptr<UcxReceive> posted_receive = forget(tag);
  if (!posted_receive) return;
  std::lock_guard lock(mutex_);
  canceled_receives_.push_back(std::move(*posted_receive));
}

void Channel::finish_canceled_receives() {
  std::vector<UcxReceive> now;
  {
    std::lock_guard lock(mutex_);
    now.swap(canceled_receives_);
  }
  for (UcxReceive& each : now) each.done(environment_error("the receive was canceled"));
}

/// The receive for an incoming put; null if the put is dropped, which the peer is notified of.
std::unique_ptr<UcxReceive> Channel::take_posted_receive(uint64_t tag, uint32_t id, size_t size) {
  std::unique_ptr<UcxReceive> posted_receive = forget(tag);
  if (!posted_receive) {
    answer(id, PutOutcome::unexpected);
    return nullptr;
  }
  if (size <= posted_receive->to.size) return posted_receive;
  answer(id, PutOutcome::too_long);
  posted_receive->done(
      environment_error(fmt::format("a put of {} bytes was received for tag {}, where {} fit", size,
                                    tag, posted_receive->to.size)));
  return nullptr;
}

void Channel::begin_put(const Head& head, const char* data, size_t size) {
  PutBegin begin;
  if (size != sizeof begin) return fail("its peer sent an invalid put");
  std::memcpy(&begin, data, sizeof begin);
  auto posted_receive = take_posted_receive(begin.tag, head.id, begin.size);
  if (!posted_receive) return;
  if (begin.size > 0) {
    bool is_new =
        incoming_puts_.emplace(head.id, IncomingPut{std::move(*posted_receive), begin.size, 0})
            .second;
    if (!is_new) fail("its peer began a put twice");
    return;
  }
  answer(head.id, PutOutcome::there);
  posted_receive->done(size_t{0});
}

void Channel::receive_put_chunk(const Head& head, const char* data, size_t size) {
  count_received(size);
  auto found = incoming_puts_.find(head.id);
  if (found == incoming_puts_.end()) return;  // it was dropped
  IncomingPut& put = found->second;
  if (size > put.size - put.arrived) return fail("its peer sent more of a put than it announced");
  std::memcpy(static_cast<char*>(put.posted_receive.to.data) + put.arrived, data, size);
  put.arrived += size;
  is_moving_ = true;
  if (put.arrived < put.size) return;
  IncomingPut own = std::move(put);
  incoming_puts_.erase(found);
  answer(head.id, PutOutcome::there);
  own.posted_receive.done(own.size);
}

ucs_status_t Channel::on_put(const PutHead& head, void* descriptor, size_t size) {
  // UCX drops a message that is not received before this returns UCS_OK, and notifies the sender.
  if (is_ending() || !has_hello_) return UCS_OK;
  auto posted_receive = take_posted_receive(head.tag, head.id, size);
  if (!posted_receive) return UCS_OK;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.memory_type = posted_receive->to.is_device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user) {
    auto* own = static_cast<Receive*>(user);
    Channel* channel = own->channel;
    channel->ucx_thread_.ucx.ucp_request_free(request);
    channel->received(own, status);
    channel->request_completed();
  };
  auto receive =
      std::make_unique<Receive>(Receive{this, head.id, size, std::move(*posted_receive)});
  Receive* own = receive.get();
  param.user_data = own;
  receives_.emplace(own, std::move(receive));
  ucs_status_ptr_t request = ucx_thread_.ucx.ucp_am_recv_data_nbx(
      ucx_thread_.worker, descriptor, own->posted_receive.to.data, size, &param);
  if (UCS_PTR_IS_ERR(request)) {
    received(own, UCS_PTR_STATUS(request));
    return UCS_OK;
  }
  requests_++;
  return UCS_INPROGRESS;
}

void Channel::received(Receive* receive, ucs_status_t status) {
  auto found = receives_.find(receive);
  std::unique_ptr<Receive> own = std::move(found->second);
  receives_.erase(found);
  is_moving_ = true;
  if (status != UCS_OK) fail(failure(status));
  if (!own->posted_receive.done) return;  // it completed too late
  if (status != UCS_OK) return own->posted_receive.done(environment_error(why_));
  answer(own->id, PutOutcome::there);
  own->posted_receive.done(own->size);
}

void Channel::forget_receives(std::vector<std::function<void(Result<size_t>)>>& dones) {
  for (auto& [key, receive] : receives_)
    dones.push_back(std::exchange(receive->posted_receive.done, nullptr));
}

}  // namespace flow::ucx
