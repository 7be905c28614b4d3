#include "transports/ucx/ucx.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/base/address.hpp"
#include "transports/ucx/channel.hpp"
#include "transports/ucx/library.hpp"
#include "transports/ucx/link.hpp"
#include "transports/ucx/sockets.hpp"
#include "transports/ucx/ucx_thread.hpp"

namespace flow {

namespace ucx {

namespace {

class UcxListener final : public Listener {
 public:
  UcxListener(std::shared_ptr<UcxThread> ucx_thread, std::shared_ptr<ListenSocket> listen_socket,
              std::string address)
      : ucx_thread_(std::move(ucx_thread)),
        listen_socket_(std::move(listen_socket)),
        address_(std::move(address)) {}
  ~UcxListener() override {
    ucx_thread_->run_now([this] { ucx_thread_->acceptor.close(listen_socket_); });
  }
  std::string address() const override { return address_; }
  void set_on_rejected(OnRejected on_rejected) override {
    ucx_thread_->run([listen_socket = listen_socket_, on_rejected = std::move(on_rejected)] {
      listen_socket->on_rejected = on_rejected;
    });
  }

 private:
  std::shared_ptr<UcxThread> ucx_thread_;
  std::shared_ptr<ListenSocket> listen_socket_;
  std::string address_;
};

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(std::shared_ptr<UcxThread> ucx_thread)
      : ucx_thread_(std::move(ucx_thread)) {}
  ~UcxTransport() override { ucx_thread_->stop(); }
  std::string name() const override { return "ucx"; }
  bool takes_device_memory() const override { return ucx_thread_->takes_device_memory; }

  Result<std::unique_ptr<Listener>> listen(const std::string& address, Accept accept) override {
    auto parsed = parse_address(address);
    FLOW_TRY(parsed);
    Result<std::shared_ptr<ListenSocket>> listen_socket =
        internal_error("the UCX thread has ended");
    std::string listens_at;
    ucx_thread_->run_now([&] {
      listen_socket = ucx_thread_->acceptor.listen(*parsed, std::move(accept));
      if (listen_socket.ok()) listens_at = (*listen_socket)->address;
    });
    FLOW_TRY(listen_socket);
    return std::unique_ptr<Listener>(
        std::make_unique<UcxListener>(ucx_thread_, *listen_socket, listens_at));
  }

  Result<std::shared_ptr<Link>> connect(const std::string& address,
                                        std::shared_ptr<LinkHandler> handler) override {
    auto parsed = parse_address(address);
    FLOW_TRY(parsed);
    auto channel = std::make_shared<Channel>(*ucx_thread_, address_text(*parsed));
    channel->set_handler(std::move(handler));
    ucx_thread_->run([ucx_thread = ucx_thread_.get(), channel] { ucx_thread->add(channel); });
    auto socket = numeric_socket(*parsed);
    if (socket.ok()) {
      accepted(*ucx_thread_, channel, socket);
    } else {
      resolve(*parsed,
              [ucx_thread = std::weak_ptr(ucx_thread_), channel](Result<SocketAddress> found) {
                if (auto alive = ucx_thread.lock()) accepted(*alive, channel, found);
              });
    }
    return make_link(ucx_thread_, channel);
  }

 private:
  static void accepted(UcxThread& ucx_thread, std::shared_ptr<Channel> channel,
                       Result<SocketAddress> socket) {
    ucx_thread.run([&ucx_thread, channel = std::move(channel), socket = std::move(socket)] {
      if (!socket.ok()) {
        channel->fail(socket.error().message);
      } else if (ucx_thread.options.is_loopback_only && !(*socket).is_loopback()) {
        channel->fail(
            "only addresses of this machine, 127.0.0.1 and ::1, are used without a secret");
      } else {
        ucx_thread.acceptor.connect(*socket, channel);
      }
    });
  }

  std::shared_ptr<UcxThread> ucx_thread_;
};

}  // namespace

}  // namespace ucx

Result<std::unique_ptr<Transport>> make_ucx_transport(const TransportOptions& options,
                                                      bool loopback_only, UcxPuts puts,
                                                      UcxFamily family) {
  auto library = ucx::load();
  FLOW_TRY(library);
  auto ucx_thread = ucx::UcxThread::start(
      **library, {options, loopback_only, puts == UcxPuts::rendezvous, family == UcxFamily::ipv6});
  FLOW_TRY(ucx_thread);
  return std::unique_ptr<Transport>(std::make_unique<ucx::UcxTransport>(*ucx_thread));
}

}  // namespace flow
