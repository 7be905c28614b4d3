// UCX itself, loaded when it is first needed.
#pragma once
#include <ucp/api/ucp.h>

#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow::ucx {

/// The functions of UCX in use, as its headers declare them.
struct UcxLibrary {
#define FLOW_UCX_CALLS(X)           \
  X(ucp_get_version)                \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_context_query)              \
  X(ucp_context_print_info)         \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_get_address)         \
  X(ucp_worker_release_address)     \
  X(ucp_worker_arm)                 \
  X(ucp_worker_progress)            \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_listener_create)            \
  X(ucp_listener_destroy)           \
  X(ucp_listener_query)             \
  X(ucp_listener_reject)            \
  X(ucp_conn_request_query)         \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_flush_nbx)               \
  X(ucp_ep_print_info)              \
  X(ucp_am_send_nbx)                \
  X(ucp_am_recv_data_nbx)           \
  X(ucp_request_free)               \
  X(ucs_status_string)
#define FLOW_UCX_POINTER(call) decltype(&::call) call = nullptr;
  FLOW_UCX_CALLS(FLOW_UCX_POINTER)
#undef FLOW_UCX_POINTER

  std::string version() const;  // "1.13.1"
  std::string text(ucs_status_t status) const { return ucs_status_string(status); }
};

/// Loaded once per process, at the first call. Thread-safe.
Result<const UcxLibrary*> load();

/// The text that `print` writes into the file that it gets; empty if memory for the file is
/// missing.
std::string printed(const std::function<void(std::FILE*)>& print);

/// Whether the output of ucp_context_print_info names a transport that leads out of this process.
/// True if its format is unknown.
bool reaches_others(std::string_view context_info);

/// Sets the variables that UCX reads, where the user left them unset, while this object lives.
/// Unlike setenv it frees nothing that another thread may read, and child processes do not inherit
/// the variables. One at a time per process.
class EnvironmentOverride {
 public:
  explicit EnvironmentOverride(bool is_ipv6_first = false);
  ~EnvironmentOverride();
  EnvironmentOverride(const EnvironmentOverride&) = delete;
  EnvironmentOverride& operator=(const EnvironmentOverride&) = delete;

 private:
  char** before_ = nullptr;
  char** during_ = nullptr;
};

}  // namespace flow::ucx
