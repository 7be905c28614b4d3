#include "engine/front/front_listener.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <utility>

#include "engine/base/files.hpp"
#include "engine/serve/http/field_text.hpp"
#include "engine/serve/service_routes.hpp"

namespace flow {

namespace {

constexpr size_t kPortFileMax = 16;  // bytes

std::string machine_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

std::string_view any_method(std::string_view) { return kAnyMethod; }

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

}  // namespace

FrontListener::FrontListener(EventLoop& loop, std::string port_file, Callbacks callbacks)
    : loop_(loop), port_file_(std::move(port_file)), callbacks_(std::move(callbacks)) {}

FrontListener::~FrontListener() = default;

Status FrontListener::open(const ServiceOptions& options) {
  uint16_t former = options.port == 0 ? former_port() : uint16_t{0};
  auto http = listen(options, former != 0 ? former : options.port);
  if (!http.ok() && former != 0) {
    callbacks_.log(fmt::format("the service had port {} before, and has another one now: {}",
                               former, http.error().message));
    http = listen(options, 0);
  }
  FLOW_TRY(http);
  http_ = std::move(*http);
  options_ = options;
  url_ = url_of(options, http_->port());
  if (options.port == 0 && http_->port() != former) keep_port();
  return {};
}

Result<std::unique_ptr<HttpServer>> FrontListener::listen(const ServiceOptions& options,
                                                          uint16_t port) {
  HttpOptions http{.name = options.name,
                   .address = options.address,
                   .port = port,
                   .tls = options.tls,
                   .rules = {.body_max = kRequestBytesMax,
                             .methods = options.forwards ? any_method : allowed_methods,
                             .hosts = host_names(options, options.address),
                             .authorize = callbacks_.authorize,
                             .keeps_fields = options.forwards},
                   .limits = options.limits,
                   .log = callbacks_.log};
  return HttpServer::open(http, callbacks_.handle, loop_);
}

/// The port of an earlier front; 0 if there was none.
uint16_t FrontListener::former_port() const {
  if (port_file_.empty()) return 0;
  auto text = read_file(port_file_, kPortFileMax);
  uint16_t port = 0;
  if (text.ok()) std::from_chars(text->data(), text->data() + text->size(), port);
  return port;
}

void FrontListener::keep_port() const {
  if (port_file_.empty()) return;
  Status written = write_file_atomic(port_file_, fmt::format("{}\n", http_->port()));
  if (!written.ok()) callbacks_.log(written.error().message);
}

Status FrontListener::check(const ServiceOptions& options) const {
  auto files = [](const ServiceOptions& of) {
    return of.tls ? std::vector<std::string>{of.tls->certificate, of.tls->key, of.tls->clients}
                  : std::vector<std::string>{};
  };
  std::string differs;
  if (options.address != options_.address || options.port != options_.port) differs = "`listen`";
  if (files(options) != files(options_)) differs += differs.empty() ? "`tls`" : " and `tls`";
  if (differs.empty()) return {};
  return user_error(fmt::format(
      "the service `{}` has another {} than the version that serves at {}, whose listener it would "
      "take over: give it the same, or stop that version first",
      options.name, differs, url_));
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

void FrontListener::begin_drain(std::function<void()> drained) {
  http_->begin_drain(std::move(drained));
}

}  // namespace flow
