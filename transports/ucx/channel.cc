// How a channel opens and ends.
#include "transports/ucx/channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "engine/base/clock.hpp"

namespace flow::ucx {

namespace {

constexpr int64_t kUsPerMs = 1000;
constexpr int64_t kGiveBackMs = 300;  // most of UCX's requests complete within 50

/// The names after "lane[…]: N:NAME/DEVICE" in UCX's description of an endpoint, each once.
std::string lane_names(const std::string& text) {
  std::string names;
  for (const char* at = text.c_str(); (at = std::strstr(at, "lane[")) != nullptr; at++) {
    char name[64] = "";
    if (std::sscanf(at, "lane[%*d]: %*d:%63[^/ ]", name) != 1) continue;
    if ((", " + names + ",").find(fmt::format(", {},", name)) != std::string::npos) continue;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

}  // namespace

void Channel::connect(const SocketAddress& address) {
  if (is_ending()) return;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = address.address();
  params.sockaddr.addrlen = address.size;
  open(params);
}

void Channel::accept(ucp_listener_h listener, ucp_conn_request_h request) {
  if (is_ending()) {
    ucx_thread_.ucx.ucp_listener_reject(listener, request);
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  open(params);
}

void Channel::open(ucp_ep_params_t& params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = this;
  params.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t status) {
    auto* channel = static_cast<Channel*>(self);
    channel->fail(channel->failure(status));
  };
  ucs_status_t status = ucx_thread_.ucx.ucp_ep_create(ucx_thread_.worker, &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return fail(failure(status));
  }
  ucx_thread_.know(endpoint_, *this);
  flush();
}

// UCX 1.13 loses and reorders messages that are sent before both ends have agreed on their lanes. A
// completed flush means that they have.
void Channel::flush() {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t status, void* self) {
    auto* channel = static_cast<Channel*>(self);
    channel->ucx_thread_.ucx.ucp_request_free(request);
    if (status == UCS_OK) channel->flushed();
    if (status != UCS_OK) channel->fail(channel->failure(status));
    channel->request_completed();
  };
  ucs_status_ptr_t request = ucx_thread_.ucx.ucp_ep_flush_nbx(endpoint_, &param);
  if (request == nullptr) return flushed();
  if (UCS_PTR_IS_ERR(request)) return fail(failure(UCS_PTR_STATUS(request)));
  requests_++;
}

void Channel::flushed() {
  has_agreed_ = true;
  ucx_thread_.schedule(*this);
}

void Channel::send_hello() {
  has_sent_hello_ = true;
  unsigned* version = hello_.ucx;
  ucx_thread_.ucx.ucp_get_version(&version[0], &version[1], &version[2]);
  hello_.takes_device = ucx_thread_.takes_device_memory ? 1 : 0;
  post(new_message(MessageKind::hello), &hello_, sizeof hello_);
  if (has_hello_) describe();
}

void Channel::receive_hello(const char* data, size_t size) {
  ChannelHello hello;
  if (has_hello_ || size != sizeof hello) return fail("its peer sent an invalid handshake");
  std::memcpy(&hello, data, sizeof hello);
  if (hello.magic != kHelloMagic || hello.version != kWireVersion) {
    return fail(
        fmt::format("{} runs another version of flow: its links are of version {}, these {}",
                    address_, hello.version, kWireVersion));
  }
  has_hello_ = true;
  peer_takes_device_ = hello.takes_device != 0;
  peer_version_ = fmt::format("{}.{}.{}", hello.ucx[0], hello.ucx[1], hello.ucx[2]);
  state_ = State::up;
  describe();
  handler_->on_up();
  ucx_thread_.schedule(*this);
}

void Channel::describe() {
  std::string text =
      printed([this](std::FILE* file) { ucx_thread_.ucx.ucp_ep_print_info(endpoint_, file); });
  std::string own = ucx_thread_.ucx.version();
  std::string versions = own == peer_version_ ? own : own + ", the peer's " + peer_version_;
  std::lock_guard lock(mutex_);
  lanes_ = fmt::format("ucx {}: {}", versions, lane_names(text));
}

std::string Channel::description() const {
  std::lock_guard lock(mutex_);
  return fmt::format("{} ({})", address_, lanes_.empty() ? "ucx: not connected" : lanes_);
}

std::string Channel::failure(ucs_status_t status) const {
  std::string text = ucx_thread_.ucx.text(status);
  bool is_end = status == UCS_ERR_ENDPOINT_TIMEOUT || status == UCS_ERR_CONNECTION_RESET;
  if (state_ == State::up && is_end)
    return fmt::format(
        "the link to {} broke: the process there has ended, or nothing reaches it any more ({})",
        address_, text);
  if (state_ == State::up) return fmt::format("the link to {} broke: {}", address_, text);
  if (status == UCS_ERR_REJECTED) return fmt::format("{} rejected the link", address_);
  return fmt::format(
      "no link to {}: {}. Does it listen there, and is UCX_TLS, where set, with tcp?", address_,
      text);
}

void Channel::fail(const std::string& why) {
  if (is_ending()) return;
  state_ = State::ending;
  why_ = why;
  ucx_thread_.schedule(*this);
}

void Channel::connect_failed(const Error& why) {
  if (is_ending()) return;
  is_refused_ = why.kind == ErrorKind::user;
  fail(fmt::format("no link to {}: {}", address_, why.message));
}

void Channel::close(int64_t flush_ms) {
  if (is_ending()) return;
  if (flush_ms > 0 && !is_all_acked()) {
    if (closing_us_ == 0) closing_us_ = monotonic_us() + flush_ms * kUsPerMs;
    return;
  }
  must_send_goodbye_ = true;
  fail("the link was closed");
}

void Channel::request_completed() {
  requests_--;
  if (is_ending()) ucx_thread_.schedule(*this);
}

void Channel::run_pending() {
  if (state_ == State::over) return;
  if (is_ending()) {
    bool is_open = endpoint_ != nullptr && force_closed_us_ == 0;
    if (is_open && must_send_goodbye_ && has_sent_hello_) post(MessageKind::goodbye);
    if (is_open) force_close();
    if (requests_ == 0 || is_forgotten_) finish();
    return;
  }
  if (has_agreed_ && !has_sent_hello_) send_hello();
  post_put_outcomes();
  progress();
  start_puts();
  if (std::exchange(must_send_ack_, false)) send_ack();
  if (closing_us_ != 0 && is_all_acked()) close(0);
}

void Channel::force_close() {
  force_closed_us_ = monotonic_us();
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t, void* self) {
    auto* channel = static_cast<Channel*>(self);
    channel->ucx_thread_.ucx.ucp_request_free(request);
    channel->request_completed();
  };
  ucx_thread_.forget(endpoint_);
  ucs_status_ptr_t request = ucx_thread_.ucx.ucp_ep_close_nbx(endpoint_, &param);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) requests_++;
}

void Channel::finish() {
  state_ = State::over;
  unsent = 0;
  Error why = is_refused_ ? user_error(why_) : environment_error(why_);
  queue_.clear();
  std::vector<std::function<void(Status)>> dones;
  std::vector<std::function<void(Result<size_t>)>> arrivals;
  // The puts themselves stay: UCX may still complete a request that it dropped.
  for (auto& [id, put] : puts_) dones.push_back(std::move(put->done));
  for (auto& put : waiting_puts_) dones.push_back(std::move(put->done));
  forget_receives(arrivals);
  for (auto& [id, each] : std::exchange(incoming_puts_, {}))
    arrivals.push_back(std::move(each.posted_receive.done));
  {
    std::lock_guard lock(mutex_);
    is_receiving_closed_ = true;
    for (auto& [tag, each] : posted_receives_) arrivals.push_back(std::move(each.done));
    posted_receives_.clear();
  }
  std::shared_ptr<LinkHandler> handler = std::exchange(handler_, nullptr);
  finish_canceled_receives();
  for (const auto& done : dones) done(why);
  for (const auto& done : arrivals) done(why);
  if (handler) handler->on_down(why);
}

bool Channel::check_deadlines(int64_t now_us) {
  if (is_ending()) {
    // UCX 1.13 may drop a rendezvous. Its endpoint is closed by now, so it accesses no memory any
    // more.
    is_forgotten_ = force_closed_us_ != 0 && now_us - force_closed_us_ > kGiveBackMs * kUsPerMs;
    if (is_forgotten_) ucx_thread_.schedule(*this);
    return true;
  }
  if (closing_us_ != 0 && now_us >= closing_us_) {
    close(0);
    return true;
  }
  bool is_waiting = state_ == State::opening || !has_sent_hello_ || !is_all_acked() ||
                    !receives_.empty() || !incoming_puts_.empty();
  if (!is_waiting || is_moving_ || began_us_ == 0) began_us_ = now_us;
  is_moving_ = false;
  if (is_waiting && now_us - began_us_ > deadline_ms_ * kUsPerMs) {
    fail(fmt::format(
        "{} {} for {} ms", address_,
        state_ == State::up && has_sent_hello_ ? "has acknowledged nothing" : "has not answered",
        deadline_ms_));
  }
  return is_waiting;
}

}  // namespace flow::ucx
