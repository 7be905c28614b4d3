#include "engine/executor/service_options.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "engine/plan/plan.hpp"
#include "engine/plan/service_keys.hpp"

namespace flow {

namespace {

/// "0" sends all tensors through the socket, to find out what shared memory gains.
constexpr const char* kSharedTensorsVariable = "FLOW_SHARED_TENSORS";

}  // namespace

Result<ServiceAccess> read_service_access(const wire::Start& start) {
  ServiceAccess access;
  if (!start.service().empty()) {
    auto spec = decode_service_options(start.service());
    FLOW_TRY(spec);
    access.spec = std::move(*spec);
  }
  access.spec.port = static_cast<uint16_t>(start.port());
  access.spec.batch_max = std::max(1u, start.batch_max());
  access.spec.batch_wait_us = start.batch_wait_us();
  auto keys = service_keys(access.spec.keys, start.service_keys());
  FLOW_TRY(keys);
  access.keys = std::move(*keys);
  return access;
}

front::Join join_of(const wire::Start& start, const ServiceAccess& access) {
  front::Join join;
  join.set_version(start.id().run());
  join.set_replica(start.task());
  join.set_pid(::getpid());
  join.set_model(start.task_name());
  join.set_service(start.service());
  join.set_port(access.spec.port);
  join.set_batch_max(access.spec.batch_max);
  join.set_batch_wait_us(access.spec.batch_wait_us);
  join.set_request_timeout_ms(start.request_timeout_ms());
  for (const std::string& key : access.keys) join.add_keys(key);
  std::string gpus;
  for (const std::string& uuid : start.gpus()) gpus += (gpus.empty() ? "" : ",") + uuid;
  join.set_gpus(gpus);
  const char* shared = std::getenv(kSharedTensorsVariable);
  join.set_shares_memory(shared == nullptr || std::string_view(shared) != "0");
  return join;
}

}  // namespace flow
