#include "transports/ucx/ucx.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/base/address.hpp"
#include "transports/ucx/channel.hpp"
#include "transports/ucx/library.hpp"
#include "transports/ucx/link.hpp"
#include "transports/ucx/net.hpp"
#include "transports/ucx/sockets.hpp"

namespace flow {

namespace ucx {

namespace {

class UcxListener final : public Listener {
 public:
  UcxListener(std::shared_ptr<Net> net, std::shared_ptr<Door> door, std::string address)
      : net_(std::move(net)), door_(std::move(door)), address_(std::move(address)) {}
  ~UcxListener() override {
    net_->run_now([this] { net_->doors.close(door_); });
  }
  std::string address() const override { return address_; }
  void set_on_rejected(OnRejected on_rejected) override {
    net_->run(
        [door = door_, on_rejected = std::move(on_rejected)] { door->on_rejected = on_rejected; });
  }

 private:
  std::shared_ptr<Net> net_;
  std::shared_ptr<Door> door_;
  std::string address_;
};

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(std::shared_ptr<Net> net) : net_(std::move(net)) {}
  ~UcxTransport() override { net_->stop(); }
  std::string name() const override { return "ucx"; }
  bool takes_device_memory() const override { return net_->takes_device_memory; }

  Result<std::unique_ptr<Listener>> listen(const std::string& address, Accept accept) override {
    auto parsed = parse_address(address);
    FLOW_TRY(parsed);
    Result<std::shared_ptr<Door>> door = internal_error("the net thread has ended");
    std::string listens_at;
    net_->run_now([&] {
      door = net_->doors.listen(*parsed, std::move(accept));
      if (door.ok()) listens_at = (*door)->address;
    });
    FLOW_TRY(door);
    return std::unique_ptr<Listener>(std::make_unique<UcxListener>(net_, *door, listens_at));
  }

  Result<std::shared_ptr<Link>> connect(const std::string& address,
                                        std::shared_ptr<LinkHandler> handler) override {
    auto parsed = parse_address(address);
    FLOW_TRY(parsed);
    auto channel = std::make_shared<Channel>(*net_, address_text(*parsed));
    channel->set_handler(std::move(handler));
    net_->run([net = net_.get(), channel] { net->add(channel); });
    auto socket = numeric_socket(*parsed);
    if (socket.ok()) {
      go(*net_, channel, socket);
    } else {
      resolve(*parsed, [net = std::weak_ptr(net_), channel](Result<SocketAddress> found) {
        if (auto alive = net.lock()) go(*alive, channel, found);
      });
    }
    return make_link(net_, channel);
  }

 private:
  static void go(Net& net, std::shared_ptr<Channel> channel, Result<SocketAddress> socket) {
    net.run([&net, channel = std::move(channel), socket = std::move(socket)] {
      if (!socket.ok()) {
        channel->fail(socket.error().message);
      } else if (net.options.is_loopback_only && !(*socket).is_loopback()) {
        channel->fail(
            "only addresses of this machine, 127.0.0.1 and ::1, are used without a secret");
      } else {
        net.doors.visit(*socket, channel);
      }
    });
  }

  std::shared_ptr<Net> net_;
};

}  // namespace

}  // namespace ucx

Result<std::unique_ptr<Transport>> make_ucx_transport(const TransportOptions& options,
                                                      bool loopback_only, UcxPuts puts,
                                                      UcxFamily family) {
  auto library = ucx::load();
  FLOW_TRY(library);
  auto net = ucx::Net::start(
      **library, {options, loopback_only, puts == UcxPuts::rendezvous, family == UcxFamily::ipv6});
  FLOW_TRY(net);
  return std::unique_ptr<Transport>(std::make_unique<ucx::UcxTransport>(*net));
}

}  // namespace flow
