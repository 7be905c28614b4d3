#include "engine/executor/gang.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "engine/base/address.hpp"
#include "engine/base/clock.hpp"
#include "engine/base/size_units.hpp"
#include "engine/crypto/hmac.hpp"
#include "engine/executor/gang_gpus.hpp"
#include "transports/collective/collective.hpp"
#include "transports/ucx/ucx.hpp"

namespace flow {

namespace {

constexpr const char* kTimeoutVariable = "FLOW_COLLECTIVE_TIMEOUT";
constexpr int64_t kTimeoutMs = 600'000;
constexpr int64_t kLinkDeadlineMs = 30'000;
constexpr int64_t kPeerReportsMs = 3'000;  // the head notices a killed worker before that
constexpr auto kCheckEvery = std::chrono::milliseconds(20);

Result<int64_t> timeout_of(Attempt& attempt) {
  bool is_set = false;
  std::string text = attempt.env(kTimeoutVariable, is_set);
  if (!is_set || text.empty()) return kTimeoutMs;
  auto ms = parse_duration_ms(text);
  if (ms.ok() && *ms > 0) return *ms;
  return user_error(
      fmt::format("{} is `{}`, and is how long a collective waits for a rank, as "
                  "\"30s\" or \"10m\"",
                  kTimeoutVariable, text));
}

/// The network interface that has the address; "" for none.
std::string interface_of(const std::string& host) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  std::string found;
  for (ifaddrs* each = all; each != nullptr && found.empty(); each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    int family = each->ifa_addr->sa_family;
    socklen_t size = family == AF_INET    ? sizeof(sockaddr_in)
                     : family == AF_INET6 ? sizeof(sockaddr_in6)
                                          : 0;
    char text[NI_MAXHOST] = {};
    bool is_it =
        size > 0 &&
        ::getnameinfo(each->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
        host == text;
    if (is_it) found = each->ifa_name;
  }
  ::freeifaddrs(all);
  return found;
}

/// A port of this machine that was free when this was called.
Result<uint16_t> free_port(const std::string& host) {
  auto failed = [&] {
    return environment_error(fmt::format("no free port on {}: {}", host, std::strerror(errno)));
  };
  bool is_v6 = host.find(':') != std::string::npos;
  sockaddr_in6 six{};
  sockaddr_in four{};
  six.sin6_family = AF_INET6;
  four.sin_family = AF_INET;
  auto* address = is_v6 ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
  socklen_t size = is_v6 ? sizeof six : sizeof four;
  void* number = is_v6 ? static_cast<void*>(&six.sin6_addr) : static_cast<void*>(&four.sin_addr);
  if (::inet_pton(address->sa_family, host.c_str(), number) != 1) {
    errno = EINVAL;
    return failed();
  }
  int descriptor = ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return failed();
  bool ok =
      ::bind(descriptor, address, size) == 0 && ::getsockname(descriptor, address, &size) == 0;
  Error why = failed();
  ::close(descriptor);
  if (!ok) return why;
  return ntohs(is_v6 ? six.sin6_port : four.sin_port);
}

/// The address of this machine for ranks on other machines; "" if there are no such ranks.
Result<std::string> host_of(const wire::Start& start) {
  if (start.remote_address().empty()) return std::string();
  auto remote = parse_address(start.remote_address());
  FLOW_TRY(remote);
  return local_host_for(*remote);
}

Result<std::unique_ptr<Transport>> transport_on(const std::string& host, const std::string& key) {
  if (host.empty()) return std::unique_ptr<Transport>();
  TransportOptions options;
  options.deadline_ms = kLinkDeadlineMs;
  if (!key.empty()) options.key = hmac_sha256(key, "flow door key, 1").view();
  bool is_ipv6 = host.find(':') != std::string::npos;
  return make_ucx_transport(options, is_loopback(host), UcxPuts::messages,
                            is_ipv6 ? UcxFamily::ipv6 : UcxFamily::ipv4);
}

/// A communicator that owns its transport: its destructor notifies the other ranks over it.
std::shared_ptr<Communicator> over(std::shared_ptr<Transport> transport,
                                   std::unique_ptr<Communicator> communicator) {
  return {communicator.release(),
          [transport = std::move(transport)](Communicator* ended) { delete ended; }};
}

std::string name_of(const wire::AttemptName& id) {
  return fmt::format("{} {} {} {}", id.run(), id.unit(), id.attempt(), id.epoch());
}

Error damaged(size_t rank) {
  return internal_error(fmt::format("the address of rank {} is damaged", rank));
}

}  // namespace

Result<std::unique_ptr<Gang>> Gang::rendezvous(Attempt& attempt) {
  const wire::Start& start = attempt.start();
  if (start.ranks() <= 1) return std::unique_ptr<Gang>();
  auto gang = std::make_unique<Gang>();
  auto timeout_ms = timeout_of(attempt);
  FLOW_TRY(timeout_ms);
  auto host = host_of(start);
  FLOW_TRY(host);
  auto made = transport_on(*host, start.gang_key());
  FLOW_TRY(made);
  std::shared_ptr<Transport> transport = std::move(*made);
  bool has_programs = start.kind() == static_cast<uint32_t>(TaskKind::shell);
  GangOptions options;
  options.gang = name_of(start.id());
  options.rank = static_cast<int>(start.id().rank());
  options.ranks = static_cast<int>(start.ranks());
  options.key = start.gang_key();
  options.encrypts = start.encrypts();
  options.transport = transport.get();
  if (!host->empty()) options.listen = address_text({*host, 0});
  options.deadline_ms = has_programs ? 0 : *timeout_ms;
  options.connects_at_once = has_programs;
  auto own_end = make_rendezvous(options);
  FLOW_TRY(own_end);

  wire::RankEndpoint own;
  own.set_address((*own_end)->address());
  if (has_programs && options.rank == 0) {
    if (!host->empty()) gang->process_rendezvous_.host = *host;
    auto port = free_port(gang->process_rendezvous_.host);
    FLOW_TRY(port);
    own.set_host(gang->process_rendezvous_.host);
    own.set_port(*port);
  }
  wire::FromExecutor message;
  *message.mutable_rank_address_report()->mutable_id() = start.id();
  message.mutable_rank_address_report()->set_rank_address(own.SerializeAsString());
  attempt.link().send(message, true);
  auto peers = attempt.link().wait_peers(*timeout_ms);
  if (!peers && attempt.stopping()) return Error{ErrorKind::interrupted, "it was asked to stop"};
  if (!peers)
    return Error{
        ErrorKind::task,
        fmt::format("rank {} is ready, but not all {} ranks are after {} s ({} sets the limit)",
                    options.rank, options.ranks, *timeout_ms / 1000.0, kTimeoutVariable)};
  std::vector<std::string> addresses;
  for (const std::string& bytes : *peers) {
    wire::RankEndpoint endpoint;
    bool ok = endpoint.ParseFromString(bytes) && endpoint.port() <= UINT16_MAX;
    if (!ok) return damaged(addresses.size());
    if (addresses.empty())
      gang->process_rendezvous_ = {endpoint.host(), static_cast<uint16_t>(endpoint.port()), ""};
    addresses.push_back(endpoint.address());
  }
  auto communicator = (*own_end)->join(addresses);
  FLOW_TRY(communicator);
  gang->communicator_ = over(transport, std::move(*communicator));
  gang->report_progress_on_stop(attempt.link(), start.id());
  if (!host->empty()) gang->process_rendezvous_.interface = interface_of(*host);
  if (has_programs && !host->empty()) gang->watch(attempt.link(), start.id());
  if (has_programs || start.gpus_size() == 0) return gang;
  auto gpus = join_gang_gpus(attempt, gang->communicator_, options.gang, *timeout_ms);
  FLOW_TRY(gpus);
  gang->communicator_ = std::move(gpus->communicator);
  gang->gpu_route_ = std::move(gpus->route);
  return gang;
}

void Gang::watch(WorkerLink& link, const wire::AttemptName& id) {
  watch_ =
      std::jthread([&link, id, communicator = communicator_.get()](const std::stop_token& stop) {
        constexpr auto kEvery = std::chrono::milliseconds(200);
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        while (communicator->state().ok())
          if (wake.wait_for(lock, stop, kEvery, [] { return false; }) || stop.stop_requested())
            return;
        wire::FromExecutor report;
        *report.mutable_peer_failure_report()->mutable_id() = id;
        report.mutable_peer_failure_report()->set_text(communicator->state().error().message);
        link.send(report, true);
      });
}

Gang::~Gang() {
  watch_ = {};
  if (link_ != nullptr) link_->set_on_stop(nullptr);
}

// The head uses these reports to find the rank that a hung gang waits for.
void Gang::report_progress_on_stop(WorkerLink& link, const wire::AttemptName& id) {
  link_ = &link;
  link.set_on_stop([&link, id, communicator = communicator_.get()] {
    auto progress = communicator->rank_progress();
    if (!progress) return;
    wire::FromExecutor message;
    *message.mutable_rank_progress_report()->mutable_id() = id;
    message.mutable_rank_progress_report()->set_rank_progress(encode_rank_progress(*progress));
    link.send(message, true);
  });
}

void Gang::log_gpu_route(Attempt& attempt) const {
  if (!gpu_route_.empty() && attempt.is_first()) attempt.log(gpu_route_);
}

Gang::ProcessRendezvous Gang::single_rank_rendezvous() {
  ProcessRendezvous single;
  auto port = free_port(single.host);
  if (port.ok()) single.port = *port;
  return single;
}

Status Gang::leave_together(Attempt& attempt, bool waits) {
  attempt.link().flush();  // its output precedes its end, which other ranks may report
  int64_t began_us = monotonic_us();
  Status left = communicator_->run(leave(waits));
  attempt.note_leave_wait(monotonic_us() - began_us);
  return left;
}

void Gang::fail(const std::string& why) { communicator_->abort(why.substr(0, why.find('\n'))); }

void fail_after_peer_reports(Attempt& attempt, const Error& cause, const std::string& message,
                             const std::string& evidence) {
  bool is_known = cause.kind != ErrorKind::environment;  // no other rank reports the cause
  if (!is_known) {
    wire::FromExecutor report;
    *report.mutable_peer_failure_report()->mutable_id() = attempt.start().id();
    report.mutable_peer_failure_report()->set_text(attempt.hidden(cause.message));
    attempt.link().send(report, true);
  }
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPeerReportsMs);
  while (!is_known && !attempt.stopping() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(kCheckEvery);
  if (attempt.stopping()) return attempt.stopped(message);
  core::Cause kind = cause.kind == ErrorKind::user   ? core::Cause::user_error
                     : cause.kind == ErrorKind::task ? core::Cause::timeout
                                                     : core::Cause::lost;
  attempt.fail_with_gang(kind, message, evidence);
}

}  // namespace flow
