// How the net thread begins and ends, and where links come in.
#include <fmt/format.h>

#include <algorithm>

#include "transports/ucx/channel.hpp"
#include "transports/ucx/link.hpp"
#include "transports/ucx/net.hpp"
#include "transports/ucx/sockets.hpp"

namespace flow::ucx {

namespace {

constexpr const char* kLoopback = "lo";

void on_request(ucp_conn_request_h request, void* door) {
  static_cast<Door*>(door)->requests.push_back(request);
}

}  // namespace

Status Net::open() {
  Settings settings;  // the context and the worker read variables of their transports'
  FLOW_TRY(open_context());
  return open_worker();
}

Status Net::open_context() {
  auto failed = [this](const char* what, ucs_status_t status) {
    return environment_error(fmt::format("UCX {} {}: {}", ucx.version(), what, ucx.text(status)));
  };
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return failed("cannot read its settings", status);
  if (options.is_loopback_only) status = ucx.ucp_config_modify(config, "NET_DEVICES", kLoopback);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  if (status == UCS_OK)
    status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx.ucp_config_release(config);
  if (status != UCS_OK) {
    context_ = nullptr;
    return failed("finds no way to send (UCX_TLS and UCX_NET_DEVICES limit it)", status);
  }
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  status = ucx.ucp_context_query(context_, &attributes);
  takes_device_memory =
      status == UCS_OK && (attributes.memory_types & (1u << UCS_MEMORY_TYPE_CUDA)) != 0;
  return {};
}

Status Net::open_worker() {
  auto failed = [this](ucs_status_t status) {
    return environment_error(
        fmt::format("UCX {} cannot make a worker: {}", ucx.version(), ucx.text(status)));
  };
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucs_status_t status = ucx.ucp_worker_create(context_, &params, &worker);
  if (status != UCS_OK) {
    worker = nullptr;
    return failed(status);
  }
  status = ucx.ucp_worker_get_efd(worker, &events_);
  if (status != UCS_OK) return failed(status);
  for (auto [id, call] : {std::pair{kEagerId, &Net::on_eager}, std::pair{kPutId, &Net::on_put}}) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = call;
    handler.arg = this;
    status = ucx.ucp_worker_set_am_recv_handler(worker, &handler);
    if (status != UCS_OK) return failed(status);
  }
  return {};
}

void Net::close() {
  if (worker != nullptr) ucx.ucp_worker_destroy(worker);
  if (context_ != nullptr) ucx.ucp_cleanup(context_);
  worker = nullptr;
  context_ = nullptr;
  abandoned_.clear();
}

Result<std::shared_ptr<Door>> Net::open_door(const Address& address, Accept accept) {
  auto socket = numeric_socket(address);
  FLOW_TRY(socket);
  if (options.is_loopback_only && !socket->is_loopback()) {
    return user_error(fmt::format(
        "cannot listen at {}: only 127.0.0.1 and ::1 may be listened at without a secret",
        address_text(address)));
  }
  auto door = std::make_shared<Door>();
  door->net = this;
  door->accept = std::move(accept);
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = socket->address();
  params.sockaddr.addrlen = socket->size;
  params.conn_handler.cb = on_request;
  params.conn_handler.arg = door.get();
  ucs_status_t status = ucx.ucp_listener_create(worker, &params, &door->listener);
  if (status != UCS_OK) {
    return environment_error(fmt::format(
        "cannot listen at {}: {}. Is the port taken, or the address not this machine's?",
        address_text(address), ucx.text(status)));
  }
  doors_.push_back(door);
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucx.ucp_listener_query(door->listener, &attributes);
  if (status != UCS_OK) {
    close_door(*door);
    return environment_error(fmt::format("cannot tell where UCX listens: {}", ucx.text(status)));
  }
  door->address = socket_text(attributes.sockaddr);
  return door;
}

void Net::close_door(Door& door) {
  door.is_closed = true;
  if (door.listener == nullptr || door.is_letting_in) return;
  for (ucp_conn_request_h request : door.requests) ucx.ucp_listener_reject(door.listener, request);
  door.requests.clear();
  ucx.ucp_listener_destroy(door.listener);
  door.listener = nullptr;
  std::erase_if(doors_, [&](const auto& each) { return each.get() == &door; });
}

bool Net::let_in() {
  std::vector<std::shared_ptr<Door>> doors;
  for (const auto& door : doors_) {
    if (!door->requests.empty()) doors.push_back(door);
  }
  for (const auto& door : doors) let_in(*door);
  return !doors.empty();
}

void Net::let_in(Door& door) {
  door.is_letting_in = true;
  while (!door.is_closed && !door.requests.empty()) {
    ucp_conn_request_h request = door.requests.front();
    door.requests.pop_front();
    let_in(door, request);
  }
  door.is_letting_in = false;
  if (door.is_closed) close_door(door);
}

void Net::let_in(Door& door, ucp_conn_request_h request) {
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  ucs_status_t status = ucx.ucp_conn_request_query(request, &attributes);
  std::string address = status == UCS_OK ? socket_text(attributes.client_address) : "a client";
  auto channel = std::make_shared<Channel>(*this, address);
  add(channel);
  std::shared_ptr<LinkHandler> handler = door.accept(make_link(shared_from_this(), channel));
  if (!handler) channel->fail("the link was refused here");
  channel->set_handler(std::move(handler));
  channel->accept(door, request);
}

}  // namespace flow::ucx
