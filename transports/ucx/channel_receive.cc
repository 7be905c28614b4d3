// What a channel receives: frames, puts, and what the peer says of those that came.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "transports/ucx/channel.hpp"

namespace flow::ucx {

namespace {

// A quarter of the peer's window.
constexpr size_t kTellBytes = size_t{1} << 18;
constexpr uint32_t kTellPieces = 256;
constexpr size_t kKeptBytes = size_t{1} << 20;  // of a frame's memory, for the next one

}  // namespace

void Channel::on_eager(const Head& head, const char* data, size_t size) {
  if (is_ending()) return;
  if (head.sequence != peer_sequence_++) return fail("UCX lost or reordered messages");
  if (head.kind != Kind::hello && !is_greeted_) return fail("its peer did not greet first");
  if (!take_acknowledgement(head)) return fail("its peer says it took what was not sent");
  switch (head.kind) {
    case Kind::hello:
      return greeted(data, size);
    case Kind::piece:
      return take_piece(head, data, size);
    case Kind::put_begin:
      return begin_put(head, data, size);
    case Kind::put_piece:
      return take_put_piece(head, data, size);
    case Kind::put_done:
      return answered(head.id, head.outcome);
    case Kind::ack:
      return;
    case Kind::bye:
      return fail(fmt::format("the peer {} closed the link", address_));
  }
  fail("its peer sent something unknown");
}

bool Channel::take_acknowledgement(const Head& head) {
  uint64_t bytes = head.taken_bytes - peer_took_bytes_;
  uint32_t pieces = head.taken_pieces - peer_took_pieces_;
  if (bytes > sent_bytes_ - peer_took_bytes_ || pieces > sent_pieces_ - peer_took_pieces_)
    return false;
  if (pieces == 0) return true;
  peer_took_bytes_ = head.taken_bytes;
  peer_took_pieces_ = head.taken_pieces;
  unsent -= std::min<size_t>(unsent, bytes);
  is_moving_ = true;
  if (!queue_.empty() || !posting_.empty() || closing_us_ != 0) ucx_thread_.attend(*this);
  return true;
}

void Channel::took(size_t bytes) {
  took_bytes_ += bytes;
  took_pieces_++;
  must_pay_ = took_bytes_ - told_bytes_ >= kTellBytes || took_pieces_ - told_pieces_ >= kTellPieces;
  if (must_pay_) return ucx_thread_.attend(*this);
  ucx_thread_.owe(*this);
}

void Channel::answer(uint32_t id, PutOutcome outcome) {
  answers_.emplace_back(id, outcome);
  ucx_thread_.attend(*this);
}

void Channel::take_piece(const Head& head, const char* data, size_t size) {
  took(size);
  if (frame_left_ == 0 && head.value == size) return handler_->on_frame({data, size});
  if (frame_left_ == 0) {
    if (head.value > kFrameBytesMax) return fail("its peer sent a frame that is too long");
    frame_.reserve(head.value);
    frame_left_ = head.value;
  }
  if (size == 0 || size > frame_left_ || head.value != frame_.size() + frame_left_)
    return fail("its peer sent pieces of no frame");
  frame_.append(data, size);
  frame_left_ -= size;
  if (frame_left_ > 0) return;
  handler_->on_frame(frame_);
  frame_.clear();
  if (frame_.capacity() > kKeptBytes) frame_.shrink_to_fit();
}

Status Channel::post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) {
  std::lock_guard lock(mutex_);
  const char* why = is_deaf_ ? "the link is down"
                    : to.is_device && !ucx_thread_.takes_device_memory
                        ? "UCX here takes no memory of a GPU"
                    : expected_.contains(tag) ? "its tag is expected already"
                                              : nullptr;
  if (why != nullptr)
    return environment_error(fmt::format("no put of tag {} is awaited: {}", tag, why));
  expected_.emplace(tag, Expected{to, std::move(done)});
  return {};
}

std::unique_ptr<Expected> Channel::forget(uint64_t tag) {
  std::lock_guard lock(mutex_);
  auto found = expected_.find(tag);
  if (found == expected_.end()) return nullptr;
  auto expected = std::make_unique<Expected>(std::move(found->second));
  expected_.erase(found);
  return expected;
}

void Channel::cancel_receive(uint64_t tag) {
  std::unique_ptr<Expected> expected = forget(tag);
  if (!expected) return;
  std::lock_guard lock(mutex_);
  given_up_.push_back(std::move(*expected));
}

void Channel::tell_given_up() {
  std::vector<Expected> now;
  {
    std::lock_guard lock(mutex_);
    now.swap(given_up_);
  }
  for (Expected& each : now) each.done(environment_error("nobody waits for the put any more"));
}

/// Of a put that came; null where it is dropped, which the peer is told.
std::unique_ptr<Expected> Channel::find_expected(uint64_t tag, uint32_t id, size_t size) {
  std::unique_ptr<Expected> expected = forget(tag);
  if (!expected) {
    answer(id, PutOutcome::unexpected);
    return nullptr;
  }
  if (size <= expected->to.size) return expected;
  answer(id, PutOutcome::too_long);
  expected->done(environment_error(fmt::format("a put of {} bytes came for tag {}, where {} fit",
                                               size, tag, expected->to.size)));
  return nullptr;
}

void Channel::begin_put(const Head& head, const char* data, size_t size) {
  PutBegin begin;
  if (size != sizeof begin) return fail("its peer sent a put that is none");
  std::memcpy(&begin, data, sizeof begin);
  auto expected = find_expected(begin.tag, head.id, begin.size);
  if (!expected) return;
  if (begin.size > 0) {
    bool is_new = arriving_.emplace(head.id, Arriving{std::move(*expected), begin.size, 0}).second;
    if (!is_new) fail("its peer began a put twice");
    return;
  }
  answer(head.id, PutOutcome::there);
  expected->done(size_t{0});
}

void Channel::take_put_piece(const Head& head, const char* data, size_t size) {
  took(size);
  auto found = arriving_.find(head.id);
  if (found == arriving_.end()) return;  // it was dropped
  Arriving& put = found->second;
  if (size > put.size - put.arrived) return fail("its peer sent more of a put than there is");
  std::memcpy(static_cast<char*>(put.expected.to.data) + put.arrived, data, size);
  put.arrived += size;
  is_moving_ = true;
  if (put.arrived < put.size) return;
  Arriving own = std::move(put);
  arriving_.erase(found);
  answer(head.id, PutOutcome::there);
  own.expected.done(own.size);
}

ucs_status_t Channel::on_put(const PutHead& head, void* descriptor, size_t size) {
  // What is not received before this returns UCS_OK is dropped by UCX, which tells the sender's.
  if (is_ending() || !is_greeted_) return UCS_OK;
  auto expected = find_expected(head.tag, head.id, size);
  if (!expected) return UCS_OK;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.memory_type = expected->to.is_device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user) {
    auto* own = static_cast<Receive*>(user);
    Channel* channel = own->channel;
    channel->ucx_thread_.ucx.ucp_request_free(request);
    channel->received(own, status);
    channel->came_back();
  };
  auto receive = std::make_unique<Receive>(Receive{this, head.id, size, std::move(*expected)});
  Receive* own = receive.get();
  param.user_data = own;
  receives_.emplace(own, std::move(receive));
  ucs_status_ptr_t request = ucx_thread_.ucx.ucp_am_recv_data_nbx(
      ucx_thread_.worker, descriptor, own->expected.to.data, size, &param);
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
  if (!own->expected.done) return;  // it came back too late
  if (status != UCS_OK) return own->expected.done(environment_error(why_));
  answer(own->id, PutOutcome::there);
  own->expected.done(own->size);
}

void Channel::forget_receives(std::vector<std::function<void(Result<size_t>)>>& dones) {
  for (auto& [key, receive] : receives_)
    dones.push_back(std::exchange(receive->expected.done, nullptr));
}

}  // namespace flow::ucx
