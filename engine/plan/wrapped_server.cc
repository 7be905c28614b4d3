#include "engine/plan/wrapped_server.hpp"

#include <algorithm>

namespace flow {

namespace {

constexpr size_t kRequestPathMax = 1024;

}  // namespace

bool is_request_path(std::string_view text) {
  return text.starts_with('/') && text.size() <= kRequestPathMax &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

std::string wrapped_server_problem(const ServiceSpec& service, bool has_command) {
  const WrappedServer& wrapped = service.wrapped;
  if (!has_command)
    return wrapped == WrappedServer() ? ""
                                      : "has `ready`, `health` or `start_timeout` and no `command`";
  bool are_paths =
      is_request_path(wrapped.ready) && (wrapped.health.empty() || is_request_path(wrapped.health));
  if (!are_paths) return "has a `command`, and a `ready` or `health` that is not a path";
  if (wrapped.start_timeout_ms < 1) return "has a `start_timeout` that is not above 0";
  bool is_proxied = service.inputs.empty() && service.outputs.empty() && service.warmup.empty() &&
                    service.batch_max == 1 && service.batch_wait_us == 0;
  return is_proxied ? ""
                    : "has a `command`, so it has no `inputs`, `outputs`, `warmup` and `batch`";
}

}  // namespace flow
