#include "engine/front/front_listener.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "engine/base/address.hpp"
#include "engine/base/files.hpp"
#include "engine/serve/http/field_text.hpp"
#include "engine/serve/http/http_listener.hpp"
#include "engine/serve/http/http_upload.hpp"
#include "engine/serve/service_routes.hpp"

namespace flow {

namespace {

constexpr size_t kPortFileMax = 16;  // bytes

std::string machine_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

bool is_any(const std::string& address) { return address == "0.0.0.0" || address == "::"; }

/// url() has the machine's name, which may be a domain.
std::vector<std::string> host_names(const ServiceOptions& options, const std::string& address) {
  std::vector<std::string> names = options.hosts;
  if (!is_any(address)) return names;
  names.push_back(machine_name());
  for (char& letter : names.back()) letter = lower_letter(letter);
  return names;
}

std::string url_of(const ServiceOptions& options, uint16_t port) {
  std::string host = is_any(options.address) ? machine_name() : options.address;
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return fmt::format("{}://{}:{}", options.tls ? "https" : "http", host, port);
}

struct Places {
  size_t http = 0, grpc = 0;  // connections that may be open at a time
};

/// As many as the limit of open files permits. A request that is forwarded needs a second socket.
Places places_of(const ServiceOptions& options) {
  constexpr size_t kGrpcMax = 4'000, kGrpcShare = 4;  // of all places
  bool has_grpc = options.grpc_port >= 0;
  size_t sockets = options.forwards ? 2 : 1;
  size_t all =
      connections_permitted(options.limits.connections_max * sockets + (has_grpc ? kGrpcMax : 0));
  size_t grpc = has_grpc ? std::clamp<size_t>(all / kGrpcShare, 1, kGrpcMax) : 0;
  size_t http = std::max<size_t>(1, (all - std::min(all, grpc)) / sockets);
  return {std::min(options.limits.connections_max, http), grpc};
}

/// The port of an earlier front; 0 if there was none.
uint16_t former_port(const std::string& port_file) {
  if (port_file.empty()) return 0;
  auto text = read_file(port_file, kPortFileMax);
  uint16_t port = 0;
  if (text.ok()) std::from_chars(text->data(), text->data() + text->size(), port);
  return port;
}

}  // namespace

FrontListener::FrontListener(EventLoop& loop, InferenceBackend& backend, RequestLog& requests,
                             PortFiles port_files, Callbacks callbacks)
    : loop_(loop),
      backend_(backend),
      requests_(requests),
      port_files_(std::move(port_files)),
      callbacks_(std::move(callbacks)) {}

FrontListener::~FrontListener() = default;

/// At the port of an earlier front, if any port will do.
template <typename Listen>
auto FrontListener::open_at(uint16_t port, const std::string& port_file,
                            const Listen& listen) const {
  uint16_t former = port == 0 ? former_port(port_file) : uint16_t{0};
  auto server = listen(former != 0 ? former : port);
  if (!server.ok() && former != 0) {
    callbacks_.log(fmt::format("the service had port {} before, and has another one now: {}",
                               former, server.error().message));
    server = listen(0);
  }
  if (server.ok() && port == 0 && (*server)->port() != former)
    keep_port(port_file, (*server)->port());
  return server;
}

Status FrontListener::open(const ServiceOptions& options) {
  // First, because the other server must not be destroyed here.
  std::unique_ptr<GrpcServer> grpc;
  if (options.grpc_port >= 0) {
    auto opened = open_at(static_cast<uint16_t>(options.grpc_port), port_files_.grpc,
                          [&](uint16_t port) { return listen_for_grpc(options, port); });
    FLOW_TRY(opened);
    grpc = std::move(*opened);
  }
  auto http =
      open_at(options.port, port_files_.http, [&](uint16_t port) { return listen(options, port); });
  FLOW_TRY(http);
  http_ = std::move(*http);
  grpc_ = std::move(grpc);
  options_ = options;
  url_ = url_of(options, http_->port());
  if (grpc_) grpc_address_ = address_text({options.address, grpc_->port()});
  return {};
}

Result<std::unique_ptr<HttpServer>> FrontListener::listen(const ServiceOptions& options,
                                                          uint16_t port) {
  std::optional<uint64_t> streamed_above;
  if (options.forwards) streamed_above = HttpUpload::kKeptMax;
  HttpLimits limits = options.limits;
  limits.connections_max = places_of(options).http;
  HttpOptions http{.name = options.name,
                   .address = options.address,
                   .port = port,
                   .tls = options.tls,
                   .rules = {.body_max = kRequestBytesMax,
                             .methods = options.forwards ? forwarded_methods : allowed_methods,
                             .hosts = host_names(options, options.address),
                             .authorize = callbacks_.authorize,
                             .refusal = callbacks_.refusal,
                             .keeps_fields = options.forwards,
                             .streamed_above = streamed_above},
                   .limits = limits,
                   .log = callbacks_.log,
                   .requests = &requests_};
  return HttpServer::open(http, callbacks_.handle, loop_);
}

Result<std::unique_ptr<GrpcServer>> FrontListener::listen_for_grpc(const ServiceOptions& options,
                                                                   uint16_t port) {
  return GrpcServer::open({.name = options.name,
                           .address = options.address,
                           .port = port,
                           .tls = options.tls,
                           .connections_max = places_of(options).grpc},
                          backend_);
}

void FrontListener::keep_port(const std::string& port_file, uint16_t port) const {
  if (port_file.empty()) return;
  Status written = write_file_atomic(port_file, fmt::format("{}\n", port));
  if (!written.ok()) callbacks_.log(written.error().message);
}

Status FrontListener::check(const ServiceOptions& options) const {
  auto files = [](const ServiceOptions& of) {
    return of.tls ? std::vector<std::string>{of.tls->certificate, of.tls->key, of.tls->clients}
                  : std::vector<std::string>{};
  };
  std::vector<const char*> differs;
  // Port 0 takes any port, also that of the listener.
  bool has_other_port = options.port != 0 && options.port != http_->port();
  if (options.address != options_.address || has_other_port) differs.push_back("`listen`");
  if (files(options) != files(options_)) differs.push_back("`tls`");
  bool takes_grpc = grpc_ && (options.grpc_port == 0 || options.grpc_port == grpc_->port());
  if (options.grpc_port != options_.grpc_port && !takes_grpc) differs.push_back("`grpc`");
  if (differs.empty()) return {};
  return user_error(fmt::format(
      "the service `{}` has another {} than the version that serves at {}, whose listener it would "
      "take over: give it the same, or stop that version first",
      options.name, fmt::join(differs, " and "), url_));
}

Status FrontListener::check_kind(const ServiceOptions& options) const {
  if (options.forwards == options_.forwards) return {};
  auto kind = [](const ServiceOptions& of) {
    return of.forwards ? "the server of a `command`" : "a function";
  };
  return user_error(fmt::format(
      "the service `{}` answers requests with {}, and the version that serves at {}, whose "
      "listener "
      "it would take over, with {}: give the service another name, or stop that version first",
      options.name, kind(options), url_, kind(options_)));
}

void FrontListener::set_hosts(const ServiceOptions& options) {
  if (http_) http_->set_hosts(host_names(options, options_.address));
}

void FrontListener::begin_drain(std::chrono::milliseconds grace, std::function<void()> drained) {
  if (!grpc_) return http_->begin_drain(std::move(drained));
  auto one_drained = [open = std::make_shared<int>(2), drained = std::move(drained)] {
    if (--*open == 0) drained();
  };
  http_->begin_drain(one_drained);
  grpc_->begin_drain(grace.count(), [this, one_drained] { loop_.post(one_drained); });
}

}  // namespace flow
