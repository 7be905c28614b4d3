// flow::Page
#include "flow/page.hpp"

#include <fmt/format.h>

#include <cstring>

#include "engine/base/address.hpp"
#include "engine/base/throwing.hpp"
#include "engine/crypto/seal.hpp"
#include "engine/page/page_server.hpp"
#include "engine/serve/http/socket_address.hpp"
#include "engine/store/lock.hpp"
#include "engine/submission/prepare.hpp"

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

/// Where the page listens. Sockets need a numeric address.
Address page_address(const std::string& listen) {
  if (listen.empty()) return own_address();
  auto address = parse_address(listen);
  if (!address.ok())
    throw Failed(
        user_error(fmt::format("the page cannot listen on `{}`: {}. Give an address and a "
                               "port, such as 127.0.0.1:8080",
                               listen, address.error().message)));
  if (!is_loopback(address->host))
    throw Failed(user_error(fmt::format(
        "the page cannot listen on `{}` yet: TLS and keys are missing for addresses beyond "
        "loopback. Listen on 127.0.0.1, and forward the port to another machine: ssh -L",
        listen)));
  if (address->host == "localhost") address->host = "127.0.0.1";
  return *address;
}

}  // namespace

Page::Page(const EngineOptions& engine, const PageOptions& options)
    : impl_(std::make_unique<Impl>()) {
  Address address = page_address(options.listen);
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
  impl_->server = value_or_throw(PageServer::open(state, impl_->state_dir, http));
  address.port = impl_->server->port();
  impl_->address = fmt::format("http://{}/", address_text(address));
  impl_->link = fmt::format("{}?token={}", impl_->address, impl_->server->link_token());
}

Page::~Page() = default;

const std::string& Page::address() const { return impl_->address; }
const std::string& Page::link() const { return impl_->link; }
const std::string& Page::state_dir() const { return impl_->state_dir; }

}  // namespace flow
