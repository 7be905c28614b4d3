// Sending: frames in chunks within a window, a few puts at a time.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "transports/ucx/channel.hpp"

namespace flow::ucx {

namespace {

constexpr size_t kChunkBytes = 64'000;            // one UCX message: it is copied at once
constexpr size_t kWindowBytes = size_t{1} << 20;  // frame bytes that the peer has not acknowledged
constexpr uint32_t kWindowChunks = 1024;
constexpr size_t kRequestsMost = 256;  // not completed by UCX
constexpr size_t kPutsAtOnce = 4;

}  // namespace

void Channel::send(std::string frame) {
  if (is_ending() || closing_us_ != 0) {
    unsent -= std::min<size_t>(unsent, frame.size());
    return;
  }
  if (frame.size() > kFrameBytesMax) {
    return fail(
        fmt::format("a frame has {} bytes; the maximum is {}", frame.size(), kFrameBytesMax));
  }
  auto outgoing = std::make_shared<OutgoingFrame>();
  outgoing->bytes = std::move(frame);
  queue_.push_back(std::move(outgoing));
  progress();
}

bool Channel::has_window() const {
  return sent_bytes_ - acked_bytes_ < kWindowBytes &&
         sent_chunks_ - acked_chunks_ < kWindowChunks && requests_ < kRequestsMost;
}

// Frames and puts alternate: neither waits for all of the other.
void Channel::progress() {
  if (ucx_thread_.is_progressing()) return ucx_thread_.schedule(*this);
  while (has_sent_hello_ && !is_ending() && has_window()) {
    bool has_frame = !queue_.empty(), has_put = !posting_.empty();
    if (!has_frame && !has_put) return;
    is_puts_turn_ = has_put && (!has_frame || !is_puts_turn_);
    if (is_puts_turn_) post_next_put_chunk();
    if (!is_puts_turn_) post_next_chunk();
  }
}

void Channel::post_next_put_chunk() {
  Put& put = *posting_.front();
  size_t size = std::min(kChunkBytes, put.from.size - put.posted);
  const char* data = static_cast<const char*>(put.from.data) + put.posted;
  put.posted += size;
  if (put.posted == put.from.size) posting_.pop_front();
  Message* message = new_message(MessageKind::put_chunk);
  message->head.id = put.head.id;
  message->put = &put;
  put.requests++;
  sent_bytes_ += size;
  sent_chunks_++;
  post(message, data, size);
}

void Channel::post_next_chunk() {
  std::shared_ptr<OutgoingFrame> frame = queue_.front();
  size_t size = std::min(kChunkBytes, frame->bytes.size() - frame->posted);
  const char* data = frame->bytes.data() + frame->posted;
  frame->posted += size;
  if (frame->posted == frame->bytes.size()) queue_.pop_front();
  Message* message = new_message(MessageKind::chunk);
  message->head.value = frame->bytes.size();
  message->frame = std::move(frame);
  sent_bytes_ += size;
  sent_chunks_++;
  post(message, data, size);
}

Message* Channel::new_message(MessageKind kind) {
  auto message = spare_ ? std::move(spare_) : std::make_unique<Message>();
  message->channel = this;
  message->head = Head{};
  message->head.kind = kind;
  return message.release();
}

void Channel::post(MessageKind kind) { post(new_message(kind), nullptr, 0); }

void Channel::post_put_outcomes() {
  for (auto [id, outcome] : std::exchange(put_outcomes_, {})) {
    if (is_ending()) return;
    Message* message = new_message(MessageKind::put_done);
    message->head.id = id;
    message->head.outcome = outcome;
    post(message, nullptr, 0);
  }
}

void Channel::post(Message* message, const void* data, size_t size) {
  FLOW_CHECK(!ucx_thread_.is_progressing());
  message->head.sequence = sequence_++;
  message->head.acked_bytes = advertised_bytes_ = received_bytes_;
  message->head.acked_chunks = advertised_chunks_ = received_chunks_;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  param.user_data = message;
  param.cb.send = [](void* request, ucs_status_t status, void* user) {
    auto* own = static_cast<Message*>(user);
    Channel* channel = own->channel;
    channel->ucx_thread_.ucx.ucp_request_free(request);
    channel->sent(own, status);
    channel->request_completed();
  };
  ucs_status_ptr_t request = ucx_thread_.ucx.ucp_am_send_nbx(
      endpoint_, kEagerId, &message->head, sizeof message->head, data, size, &param);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
    requests_++;
    return;
  }
  sent(message, request == nullptr ? UCS_OK : UCS_PTR_STATUS(request));
}

void Channel::sent(Message* message, ucs_status_t status) {
  std::unique_ptr<Message> own(message);
  own->frame.reset();
  Put* put = std::exchange(own->put, nullptr);
  spare_ = std::move(own);
  if (status != UCS_OK) return fail(failure(status));
  if (put != nullptr) {
    put->requests--;
    finish_if_complete(*put);
  }
  if (!queue_.empty() || !posting_.empty()) ucx_thread_.schedule(*this);
}

void Channel::put(uint64_t tag, Region from, std::function<void(Status)> done) {
  const char* why = is_ending()                ? "the link is down"
                    : closing_us_ != 0         ? "the link is being closed"
                    : from.size > kPutBytesMax ? "a put was longer than kPutBytesMax"
                    : from.is_device && !ucx_thread_.takes_device_memory
                        ? "UCX here does not support GPU memory"
                        : nullptr;
  if (why != nullptr) {
    unsent -= std::min<size_t>(unsent, from.size);
    return done(environment_error(why));
  }
  auto put = std::make_unique<Put>();
  put->channel = this;
  put->head.tag = tag;
  put->head.id = ++last_put_;
  put->from = from;
  put->done = std::move(done);
  waiting_puts_.push_back(std::move(put));
  ucx_thread_.schedule(*this);
}

void Channel::start_puts() {
  while (has_sent_hello_ && has_hello_ && !is_ending() && !waiting_puts_.empty() &&
         puts_.size() < kPutsAtOnce) {
    std::unique_ptr<Put> put = std::move(waiting_puts_.front());
    waiting_puts_.pop_front();
    Put& own = *put;
    puts_.emplace(own.head.id, std::move(put));
    start(own);
  }
}

// UCX 1.13 drops rendezvous whose peer dies: host memory is sent in chunks, which the peer copies
// to their place.
void Channel::start(Put& put) {
  bool may_be_device = ucx_thread_.takes_device_memory || peer_takes_device_;
  if (put.from.size > 0 && (may_be_device || ucx_thread_.options.is_rendezvous_always))
    return start_rendezvous(put);
  put.begin = {put.head.tag, put.from.size};
  Message* message = new_message(MessageKind::put_begin);
  message->head.id = put.head.id;
  message->put = &put;
  put.requests++;
  if (put.from.size > 0) posting_.push_back(&put);
  post(message, &put.begin, sizeof put.begin);
}

void Channel::start_rendezvous(Put& put) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY;
  param.memory_type = put.from.is_device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  param.user_data = &put;
  param.cb.send = [](void* request, ucs_status_t status, void* user) {
    auto* own = static_cast<Put*>(user);
    Channel* channel = own->channel;
    channel->ucx_thread_.ucx.ucp_request_free(request);
    own->requests--;
    if (status != UCS_OK) channel->fail(channel->failure(status));
    channel->finish_if_complete(*own);
    channel->request_completed();
  };
  ucs_status_ptr_t request = ucx_thread_.ucx.ucp_am_send_nbx(
      endpoint_, kPutId, &put.head, sizeof put.head, put.from.data, put.from.size, &param);
  if (UCS_PTR_IS_ERR(request)) return fail(failure(UCS_PTR_STATUS(request)));
  if (request == nullptr) return finish_if_complete(put);
  put.requests++;
  requests_++;
}

void Channel::answered(uint32_t id, PutOutcome outcome) {
  auto found = puts_.find(id);
  if (found == puts_.end() || found->second->is_answered)
    return fail("its peer answered a put that is not in flight");
  is_moving_ = true;
  found->second->is_answered = true;
  found->second->outcome = outcome;
  std::erase(posting_, found->second.get());
  finish_if_complete(*found->second);
}

void Channel::finish_if_complete(Put& put) {
  if (put.requests > 0 || !put.is_answered || is_ending()) return;
  auto found = puts_.find(put.head.id);
  std::unique_ptr<Put> own = std::move(found->second);
  puts_.erase(found);
  unsent -= std::min<size_t>(unsent, own->from.size - own->posted);
  ucx_thread_.schedule(*this);
  switch (own->outcome) {
    case PutOutcome::there:
      return own->done({});
    case PutOutcome::unexpected:
      return own->done(environment_error(
          fmt::format("the peer has no receive posted for tag {}", own->head.tag)));
    case PutOutcome::too_long:
      return own->done(environment_error(fmt::format(
          "a put of {} bytes is longer than the receive that the peer posted for tag {}",
          own->from.size, own->head.tag)));
  }
}

bool Channel::is_all_acked() const {
  return queue_.empty() && sent_chunks_ == acked_chunks_ && puts_.empty() && waiting_puts_.empty();
}

void Channel::send_ack() {
  if (advertised_chunks_ != received_chunks_ && has_sent_hello_ && !is_ending())
    post(MessageKind::ack);
}

}  // namespace flow::ucx
