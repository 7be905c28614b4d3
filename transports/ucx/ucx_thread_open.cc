// How the UCX thread starts and ends.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <string>

#include "engine/base/clock.hpp"
#include "transports/ucx/channel.hpp"
#include "transports/ucx/sockets.hpp"
#include "transports/ucx/ucx_thread.hpp"

namespace flow::ucx {

namespace {

constexpr const char* kLoopback = "lo";
// Interval and maximum number of checks whether the connections of closed listeners are gone.
constexpr std::chrono::milliseconds kGoneEach{1};
constexpr int kGoneMost = 1'000;

constexpr Ip kLoopbackIps[] = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1},
                               {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

}  // namespace

Status UcxThread::open() {
  EnvironmentOverride environment(
      options.is_ipv6_first);  // the context and the worker read their transports' variables
  FLOW_TRY(acceptor.open());
  FLOW_TRY(open_context());
  return open_worker();
}

Status UcxThread::open_context() {
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
    return failed("has no transport (UCX_TLS and UCX_NET_DEVICES limit them)", status);
  }
  // If it has only transports within a process, UCX 1.13 stops its own thread with the first link
  // that fails, and then reads freed memory.
  auto print = [this](std::FILE* file) { ucx.ucp_context_print_info(context_, file); };
  if (!reaches_others(printed(print))) {
    return environment_error(
        fmt::format("UCX {} finds no network here, not even loopback. Is /sys mounted, and does "
                    "UCX_TLS, if it is set, contain tcp?",
                    ucx.version()));
  }
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  status = ucx.ucp_context_query(context_, &attributes);
  takes_device_memory =
      status == UCS_OK && (attributes.memory_types & (1u << UCS_MEMORY_TYPE_CUDA)) != 0;
  return {};
}

Status UcxThread::open_worker() {
  auto failed = [this](ucs_status_t status) {
    return environment_error(
        fmt::format("UCX {} cannot create a worker: {}", ucx.version(), ucx.text(status)));
  };
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  auto before = listening_sockets();
  if (!before.ok()) return before.error();
  ucs_status_t status = ucx.ucp_worker_create(context_, &params, &worker);
  if (status != UCS_OK) {
    worker = nullptr;
    return failed(status);
  }
  if (!options.is_loopback_only) FLOW_TRY(install_filter(*before));
  status = ucx.ucp_worker_get_efd(worker, &events_);
  if (status != UCS_OK) return failed(status);
  for (auto [id, call] :
       {std::pair{kEagerId, &UcxThread::on_eager}, std::pair{kPutId, &UcxThread::on_put}}) {
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

// UCX has a listener of its own on each network: unauthenticated machines are blocked there.
Status UcxThread::install_filter(const std::vector<int>& before) {
  auto now = listening_sockets();
  if (!now.ok()) return now.error();
  std::vector<int> opened;
  for (int socket : *now) {
    if (std::find(before.begin(), before.end(), socket) == before.end()) opened.push_back(socket);
  }
  ucp_address_t* address = nullptr;
  size_t size = 0;
  ucs_status_t status = ucx.ucp_worker_get_address(worker, &address, &size);
  if (status != UCS_OK)
    return environment_error(fmt::format("UCX has no address: {}", ucx.text(status)));
  Status watched = socket_filter_.watch(opened, {reinterpret_cast<const char*>(address), size});
  ucx.ucp_worker_release_address(worker, address);
  return watched;
}

bool UcxThread::end_listening() {
  acceptor.end();
  for (int i = 0; i < kGoneMost && acceptor.check_deadlines(monotonic_us()); i++) {
    std::this_thread::sleep_for(kGoneEach);
    ucx.ucp_worker_progress(worker);
  }
  return !acceptor.check_deadlines(monotonic_us());
}

void UcxThread::close() {
  if (!end_listening()) {  // UCX's own thread may still use it: it is not destroyed
    worker = nullptr;
    context_ = nullptr;
  }
  if (worker != nullptr) ucx.ucp_worker_destroy(worker);
  if (context_ != nullptr) ucx.ucp_cleanup(context_);
  worker = nullptr;
  context_ = nullptr;
  abandoned_.clear();
}

Status UcxThread::trust(std::vector<Ip> ips) {
  if (options.is_loopback_only) return {};
  std::vector<Ip> own = own_ips();
  bool is_here = std::any_of(ips.begin(), ips.end(), [&](const Ip& ip) {
    return is_loopback(ip) || std::find(own.begin(), own.end(), ip) != own.end();
  });
  if (is_here) ips.insert(ips.end(), std::begin(kLoopbackIps), std::end(kLoopbackIps));
  return socket_filter_.allow(ips);
}

}  // namespace flow::ucx
