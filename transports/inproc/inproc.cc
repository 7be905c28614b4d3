#include "transports/inproc/inproc.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "engine/base/address.hpp"
#include "transports/inproc/connection.hpp"
#include "transports/inproc/loop.hpp"

namespace flow {

namespace inproc {

namespace {

using Accept = std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)>;

class InprocEndpoint {
 public:
  InprocEndpoint(std::shared_ptr<EventLoop> loop, Accept accept, int64_t deadline_ms)
      : loop(std::move(loop)), deadline_ms(deadline_ms), accept_(std::move(accept)) {}
  void admit(InprocConnection& connection) {
    std::lock_guard lock(mutex_);
    if (accept_) return connection.accept(accept_);
    connection.close(1, 0);
  }
  void close() {
    std::lock_guard lock(mutex_);
    accept_ = nullptr;
  }

  const std::shared_ptr<EventLoop> loop;
  const int64_t deadline_ms;

 private:
  std::mutex mutex_;
  Accept accept_;
};

/// The addresses at which this process listens.
class EndpointRegistry {
 public:
  Result<std::string> open(Address address, std::shared_ptr<InprocEndpoint> endpoint) {
    std::lock_guard lock(mutex_);
    if (address.port == 0) address.port = free_port(address);
    std::string text = address_text(address);
    if (!endpoints_.emplace(text, std::move(endpoint)).second) {
      return environment_error(
          fmt::format("cannot listen at {}: this process listens there already", text));
    }
    return text;
  }
  void close(const std::string& address) {
    std::lock_guard lock(mutex_);
    endpoints_.erase(address);
  }
  std::shared_ptr<InprocEndpoint> find(const std::string& address) {
    std::lock_guard lock(mutex_);
    auto found = endpoints_.find(address);
    return found == endpoints_.end() ? nullptr : found->second;
  }
  std::string name_of_client() {
    std::lock_guard lock(mutex_);
    return fmt::format("client:{}", ++clients_);
  }

 private:
  uint16_t free_port(Address address) {
    do {
      address.port = ++last_port_ == 0 ? ++last_port_ : last_port_;
    } while (endpoints_.contains(address_text(address)));
    return address.port;
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<InprocEndpoint>> endpoints_;
  uint16_t last_port_ = 40'000;
  uint64_t clients_ = 0;
};

EndpointRegistry& endpoints() {
  static EndpointRegistry* all =
      new EndpointRegistry;  // never destroyed: links may end while the process exits
  return *all;
}

class InprocListener final : public Listener {
 public:
  InprocListener(std::string address, std::shared_ptr<InprocEndpoint> endpoint)
      : address_(std::move(address)), endpoint_(std::move(endpoint)) {}
  ~InprocListener() override {
    endpoints().close(address_);
    endpoint_->close();
  }
  std::string address() const override { return address_; }

 private:
  std::string address_;
  std::shared_ptr<InprocEndpoint> endpoint_;
};

class InprocTransport final : public Transport {
 public:
  explicit InprocTransport(const TransportOptions& options) : options_(options) {}
  ~InprocTransport() override { loop_->stop(); }
  std::string name() const override { return "inproc"; }
  bool takes_device_memory() const override { return false; }

  Result<std::unique_ptr<Listener>> listen(const std::string& address, Accept accept) override {
    auto parsed = parse_address(address);
    FLOW_TRY(parsed);
    auto endpoint =
        std::make_shared<InprocEndpoint>(loop_, std::move(accept), options_.deadline_ms);
    auto opened = endpoints().open(*parsed, endpoint);
    FLOW_TRY(opened);
    return std::unique_ptr<Listener>(std::make_unique<InprocListener>(*opened, endpoint));
  }

  Result<std::shared_ptr<Link>> connect(const std::string& address,
                                        std::shared_ptr<LinkHandler> handler) override {
    auto parsed = parse_address(address);
    FLOW_TRY(parsed);
    std::string text = address_text(*parsed);
    std::shared_ptr<InprocEndpoint> endpoint = endpoints().find(text);
    auto connection = std::make_shared<InprocConnection>(loop_, endpoint ? endpoint->loop : loop_,
                                                         endpoints().name_of_client(), text);
    connection->begin(std::move(handler), options_.deadline_ms,
                      endpoint ? endpoint->deadline_ms : options_.deadline_ms);
    std::shared_ptr<Link> link = make_link(connection, 0);
    if (!endpoint) {
      connection->end(0, environment_error(fmt::format("nothing listens at {}", text)), {});
    } else if (!endpoint->loop->post([connection, endpoint] { endpoint->admit(*connection); })) {
      connection->close(1, 0);
    }
    return link;
  }

 private:
  TransportOptions options_;
  std::shared_ptr<EventLoop> loop_ = std::make_shared<EventLoop>();
};

}  // namespace

}  // namespace inproc

std::unique_ptr<Transport> make_inproc_transport(const TransportOptions& options) {
  return std::make_unique<inproc::InprocTransport>(options);
}

}  // namespace flow
