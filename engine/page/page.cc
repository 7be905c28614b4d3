// Opens the page: checks the options, chooses an address, makes the link.
#include "flow/page.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/address.hpp"
#include "engine/base/throwing.hpp"
#include "engine/base/user_name.hpp"
#include "engine/crypto/seal.hpp"
#include "engine/page/page_server.hpp"
#include "engine/plan/service_keys.hpp"
#include "engine/serve/http/socket_address.hpp"
#include "engine/store/lock.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

struct Page::Impl {
  std::string state_dir, address, link;
  std::unique_ptr<PageServer> server;
};

namespace {

/// A browser sends a cookie to each server at the page's address, whatever its port. So the page
/// gets an address that no other server of this machine has on purpose. Linux has all of
/// 127.0.0.0/8; elsewhere it is 127.0.0.1.
Address own_address() {
  std::string bytes = random_bytes(3);
  auto part = [&](size_t i) { return 1 + static_cast<unsigned char>(bytes[i]) % 254; };
  Address own{fmt::format("127.{}.{}.{}", part(0), part(1), part(2)), 0};
  return listening_problem(own) == 0 ? own : Address{"127.0.0.1", 0};
}

constexpr size_t kTokenNameMax = 64;

/// Where the page listens. Sockets need a numeric address.
Address page_address(const PageOptions& options) {
  const std::string& listen = options.listen;
  if (listen.empty()) return own_address();
  auto address = parse_address(listen);
  if (!address.ok())
    throw Failed(
        user_error(fmt::format("the page cannot listen on `{}`: {}. Give an address and a "
                               "port, such as 127.0.0.1:8080",
                               listen, address.error().message)));
  bool is_safe = !options.tls_certificate.empty() && !options.keys_file.empty();
  if (!is_loopback(address->host) && !is_safe)
    throw Failed(user_error(fmt::format(
        "the page cannot listen on `{}`, which is beyond loopback, without TLS and keys: give "
        "--tls-cert, --tls-key and --keys. Or listen on 127.0.0.1, and forward the port to another "
        "machine: ssh -L",
        listen)));
  if (address->host == "localhost") address->host = "127.0.0.1";
  return *address;
}

/// The name of this machine, for links to a page that listens on all addresses.
std::string machine_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

/// Checks the files here, so that the error names the option.
PageExposure exposure_of(const PageOptions& options, const Address& address) {
  PageExposure exposure;
  exposure.is_encrypted = !options.tls_certificate.empty();
  if (exposure.is_encrypted != !options.tls_key.empty())
    throw Failed(user_error("TLS needs both --tls-cert and --tls-key; they may name one file"));
  if (!options.keys_file.empty()) {
    auto keys = read_key_file(options.keys_file);
    if (!keys.ok()) throw Failed(user_error("--keys: " + keys.error().message));
    exposure.keys = std::move(*keys);
  }
  exposure.names = options.hosts;
  exposure.names.insert(exposure.names.end(), {machine_name(), address.host});
  return exposure;
}

std::string who_of(const PageOptions& options) {
  const std::string& name = options.token_name;
  if (name.empty()) return own_user_name();
  bool is_printable = std::ranges::all_of(
      name, [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 0x7f; });
  if (name.size() > kTokenNameMax || !is_printable || !is_utf8(name))
    throw Failed(user_error(
        fmt::format("the name of a token has 1 to {} characters without blanks, not `{}`",
                    kTokenNameMax, name)));
  return name;
}

}  // namespace

Page::Page(const EngineOptions& engine, const PageOptions& options)
    : impl_(std::make_unique<Impl>()) {
  Address address = page_address(options);
  PageExposure exposure = exposure_of(options, address);
  std::string who = who_of(options);
  EngineOptions state = engine;
  impl_->state_dir = state.state = value_or_throw(find_state(engine));
  ok_or_throw(readable_state(impl_->state_dir));
  if (int code = listening_problem(address); code != 0)
    throw Failed(environment_error(fmt::format(
        "the page cannot listen on `{}`: {}. Choose another address, or port 0 for a free port",
        address_text(address), std::strerror(code))));
  HttpOptions http;
  http.name = "flow ui";
  http.address = address.host;
  http.port = address.port;
  if (exposure.is_encrypted) http.tls = TlsFiles{options.tls_certificate, options.tls_key};
  const char* scheme = exposure.is_encrypted ? "https" : "http";
  impl_->server =
      value_or_throw(PageServer::open(state, impl_->state_dir, http, std::move(exposure), who));
  address.port = impl_->server->port();
  if (address.host == "0.0.0.0" || address.host == "::") address.host = machine_name();
  impl_->address = fmt::format("{}://{}/", scheme, address_text(address));
  impl_->link = fmt::format("{}?token={}", impl_->address, impl_->server->link_token());
}

Page::~Page() = default;

const std::string& Page::address() const { return impl_->address; }
const std::string& Page::link() const { return impl_->link; }
const std::string& Page::state_dir() const { return impl_->state_dir; }

}  // namespace flow
