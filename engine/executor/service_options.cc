#include "engine/executor/service_options.hpp"

#include <algorithm>

#include "engine/plan/plan.hpp"
#include "engine/plan/service_keys.hpp"

namespace flow {

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

void set_service_options(const ServiceAccess& access, ServiceOptions& options) {
  const ServiceSpec& spec = access.spec;
  if (!spec.address.empty()) options.address = spec.address;
  options.port = spec.port;
  if (!spec.tls.is_empty())
    options.tls = TlsFiles{spec.tls.certificate, spec.tls.key, spec.tls.clients};
  options.keys = access.keys;
  options.hosts = spec.hosts;
  options.queue = spec.queue_max;
  options.inputs = spec.inputs;
  options.outputs = spec.outputs;
  options.batch_max = spec.batch_max;
  options.batch_wait_us = spec.batch_wait_us;
}

}  // namespace flow
