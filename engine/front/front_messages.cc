#include "engine/front/front_messages.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "engine/plan/plan.hpp"
#include "engine/plan/service_spec.hpp"
#include "engine/serve/oip_datatypes.hpp"

namespace flow {

namespace {

constexpr size_t kNameMax = 4096;  // bytes
constexpr std::string_view kServerHost = "127.0.0.1";

Error invalid(const std::string& what) {
  return user_error(fmt::format("the replica cannot join the front of its service: {}", what));
}

}  // namespace

Result<Front::JoinRequest> join_request_of(const front::Join& join) {
  for (const std::string* name : {&join.version(), &join.model()})
    if (name->empty() || name->size() > kNameMax)
      return invalid("its version or model has no name");
  if (join.port() > std::numeric_limits<uint16_t>::max()) return invalid("its port is above 65535");
  ServiceSpec spec;
  if (!join.service().empty()) {
    auto decoded = decode_service_options(join.service());
    if (!decoded.ok()) return invalid(decoded.error().message);
    spec = std::move(*decoded);
  }
  spec.port = static_cast<uint16_t>(join.port());
  spec.batch_max = std::max(1u, join.batch_max());
  spec.batch_wait_us = std::max<int64_t>(0, join.batch_wait_us());
  if (std::string problem = service_problem(spec); !problem.empty()) return invalid(problem);
  // It must not serve without the keys that it asks for.
  if (!spec.keys.is_empty() && join.keys().empty()) return invalid("it has no keys");
  Front::JoinRequest request{
      .version = join.version(),
      .replica = {.name = join.replica(), .pid = join.pid(), .gpus = join.gpus()},
      .options = {}};
  ServiceOptions& options = request.options;
  if (join.wraps_server()) {
    if (spec.grpc_port >= 0) return invalid("a server that it wraps has no gRPC");
    auto server = parse_listen(join.server());
    if (!server || server->host != kServerHost || server->port == 0)
      return invalid("its server has no address such as 127.0.0.1:8080");
    request.replica.server = server->port;
    if (join.worker().empty()) request.replica.server_socket = join.server_socket();
    options.forwards = true;
  }
  options.name = join.model();
  if (!spec.address.empty()) options.address = spec.address;
  options.port = spec.port;
  options.grpc_port = spec.grpc_port;
  if (!spec.tls.is_empty())
    options.tls = TlsFiles{spec.tls.certificate, spec.tls.key, spec.tls.clients};
  options.keys.assign(join.keys().begin(), join.keys().end());
  options.hosts = spec.hosts;
  options.inputs = spec.inputs;
  options.outputs = spec.outputs;
  options.batch_max = spec.batch_max;
  options.batch_wait_us = spec.batch_wait_us;
  options.queue = spec.queue_max;
  options.is_padded = spec.is_padded;
  for (const WarmupTensor& from : spec.warmup) {
    InferTensor& tensor = options.warmup[from.name];
    if (!set_element_type(tensor, from.dtype)) return invalid("its warm-up has an unknown type");
    tensor.shape = from.shape;
    tensor.data = std::make_shared<const std::string>(from.data);
  }
  // As a client would send it: the declared datatype may be one that tensors hold in a wider type.
  for (const TensorSpec& input : spec.inputs)
    if (auto found = options.warmup.find(input.name); found != options.warmup.end())
      found->second.datatype = find_datatype(input.datatype);
  options.is_idempotent = spec.is_idempotent;
  options.access_log = spec.access_log;
  options.drain_delay_ms = spec.drain_delay_ms;
  if (join.request_timeout_ms() > 0) options.request_timeout_ms = join.request_timeout_ms();
  return request;
}

front::Status status_of(const Front& front) {
  front::Status status;
  status.set_url(front.url());
  status.set_pid(::getpid());
  status.set_is_ready(front.is_ready());
  status.set_is_draining(front.is_draining());
  status.set_access_log(front.access_log());
  auto now = Front::Clock::now();
  for (const VersionSet::Entry& each : front.versions().all()) {
    const ServiceVersion& version = *each.version;
    RequestCounters::Figures figures = version.counters().figures(now);
    front::VersionStatus& to = *status.add_versions();
    to.set_version(version.id());
    to.set_percent(each.percent);
    to.set_requests(figures.requests);
    to.set_errors(figures.errors);
    to.set_refused(figures.refused);
    to.set_step_requests(figures.step_requests);
    to.set_step_errors(figures.step_errors);
    to.set_step_refused(figures.step_refused);
    to.set_step_p50_us(figures.step_p50.count());
    to.set_step_p99_us(figures.step_p99.count());
    to.set_requests_per_second(figures.requests_per_second);
    to.set_p50_us(figures.p50.count());
    to.set_p99_us(figures.p99.count());
    to.set_queue_us(version.queue_time(now).count());
    to.set_rejected(figures.rejected);
    to.set_queued(version.queued());
    to.set_running(version.running());
    for (const ServiceMetrics::DurationBucket& each_bucket : version.metrics().durations()) {
      front::DurationBucket& bucket = *to.add_durations();
      bucket.set_up_to_us(each_bucket.up_to_us);
      bucket.set_requests(each_bucket.requests);
    }
    for (const ServiceVersion::ReplicaEntry& entry : version.replicas()) {
      front::ReplicaStatus& replica = *to.add_replicas();
      replica.set_replica(entry.description.name);
      replica.set_pid(entry.description.pid);
      replica.set_gpus(entry.description.gpus);
      replica.set_is_leaving(entry.state.is_leaving);
      replica.set_batches(entry.state.batches);
      replica.set_is_busy(entry.state.is_busy);
      replica.set_worker(entry.description.worker);
    }
  }
  return status;
}

}  // namespace flow
