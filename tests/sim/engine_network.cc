#include "tests/sim/engine_network.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

namespace flow::sim {

namespace {

constexpr core::Time kNoticeMs = 60;  // until an end of a link that broke finds out, at most

}  // namespace

/// A connection: side 0 connected, side 1 listened.
class SimWire : public std::enable_shared_from_this<SimWire> {
 public:
  SimWire(SimNetwork& network, std::shared_ptr<SimProcess> from, std::string address,
          std::shared_ptr<LinkHandler> handler)
      : network_(&network), address_(std::move(address)) {
    sides_[0].process = std::move(from);
    sides_[0].handler = std::move(handler);
  }

  void begin() {
    after(network_->delay(), [](SimWire& self) { self.accept(); });
  }

  void send(int from, std::string frame) {
    Side& side = sides_[from];
    if (network_ == nullptr || side.is_down || side.is_closing || !side.process->is_alive) return;
    side.process->on_send();
    Item item{std::move(frame), network_->stamp_()};
    switch (std::exchange(side.fault, FrameFault::none)) {
      case FrameFault::lost:
        return;
      case FrameFault::repeated:
        put(1 - from, item);
        break;
      case FrameFault::swapped:
        side.overtaken = std::move(item);
        return;
      case FrameFault::changed: {
        size_t at = network_->world_.random.below(static_cast<uint32_t>(item.frame->size()));
        (*item.frame)[at] = static_cast<char>((*item.frame)[at] ^ 1);
        break;
      }
      default:
        break;
    }
    put(1 - from, std::move(item));
    if (side.overtaken) put(1 - from, *std::exchange(side.overtaken, std::nullopt));
  }

  void close(int from, bool flushes) {
    Side& side = sides_[from];
    if (network_ == nullptr || side.is_closing || side.is_down) return;
    side.is_closing = true;
    if (!flushes) sides_[1 - from].items.clear();
    put(1 - from, Item{std::nullopt, 0});
    end(from, "it was closed");
  }

  void cut(const std::string& why) {
    for (int side : {0, 1}) {
      sides_[side].items.clear();
      sides_[side].is_closing = true;
      after(1 + network_->world_.random.below(kNoticeMs),
            [side, why](SimWire& self) { self.end(side, why); });
    }
  }

  /// The process of this side has ended. Where its machine is gone too, the peer hears nothing
  /// more.
  void kill(int side, bool is_machine_gone) {
    bool arrives = network_->world_.random.one_in(2);  // what it has sent
    if (!is_machine_gone && arrives) {
      put(1 - side, Item{std::nullopt, 0});
    } else if (!is_machine_gone) {
      sides_[1 - side].items.clear();
      after(1 + network_->world_.random.below(kNoticeMs),
            [side](SimWire& self) { self.end(1 - side, "its peer's process ended"); });
    }
    end(side, "the process ends");
  }

  void end(int at, const std::string& why) {
    Side& side = sides_[at];
    if (std::exchange(side.is_down, true)) return;
    side.items.clear();
    auto handler = std::exchange(side.handler, nullptr);
    if (handler) enter(at, [&] { handler->on_down(environment_error(why)); });
  }

  void leave_network() {
    network_ = nullptr;
    for (Side& side : sides_) side.handler = nullptr;
  }

  void fault_next_frame(int from, FrameFault fault) { sides_[from].fault = fault; }
  SimProcess* process(int side) const { return sides_[side].process.get(); }
  bool is_down() const { return sides_[0].is_down && (sides_[1].is_down || !was_accepted_); }
  const std::string& address() const { return address_; }

 private:
  struct Item {
    std::optional<std::string> frame;  // nothing: the peer has closed
    uint64_t stamp;
  };
  struct Side {
    std::shared_ptr<SimProcess> process;
    std::shared_ptr<LinkHandler> handler;  // until it is down
    bool is_down = false, is_closing = false;
    std::deque<Item> items;  // under way to this side
    core::Time last_arrival = 0;
    FrameFault fault = FrameFault::none;
    std::optional<Item> overtaken;  // goes behind the next one
  };

  template <typename Act>
  void after(core::Time ms, Act act) {
    network_->world_.after(ms, [self = shared_from_this(), act] {
      if (self->network_ != nullptr) act(*self);
    });
  }

  // In a process that has ended, only its own links end.
  void enter(int side, const std::function<void()>& act) {
    SimProcess& process = *sides_[side].process;
    if (process.is_alive) {
      process.enter(act);
    } else {
      act();
    }
  }

  core::Time partitioned_until() const {
    core::Time until = 0;
    for (const Side& side : sides_) {
      if (!side.process) continue;
      auto found = network_->partitioned_until_.find(side.process->host);
      if (found != network_->partitioned_until_.end()) until = std::max(until, found->second);
    }
    return until;
  }

  void accept();
  void put(int to, Item item) {
    Side& side = sides_[to];
    if (side.is_down) return;
    core::Time now = network_->world_.now();
    side.last_arrival = std::max(side.last_arrival, now + network_->delay());
    side.items.push_back(std::move(item));
    after(side.last_arrival - now, [to](SimWire& self) { self.deliver(to); });
  }

  // Each item has an event; an event of an item that was taken delivers a later one.
  void deliver(int to) {
    Side& side = sides_[to];
    if (side.is_down || side.items.empty()) return;
    core::Time wait = partitioned_until() - network_->world_.now();
    if (wait > 0) return after(wait, [to](SimWire& self) { self.deliver(to); });
    if (!side.process || !side.process->is_alive) return side.items.clear();
    Item item = std::move(side.items.front());
    side.items.pop_front();
    if (!item.frame) return end(to, "its peer closed it");
    network_->stamp_of_frame_ = item.stamp;
    enter(to, [handler = side.handler, &item] { handler->on_frame(*item.frame); });
  }

  SimNetwork* network_;
  const std::string address_;
  std::array<Side, 2> sides_;
  bool was_accepted_ = false;
};

namespace {

class SimLink final : public Link {
 public:
  SimLink(std::shared_ptr<SimWire> wire, int side) : wire_(std::move(wire)), side_(side) {}
  ~SimLink() override { wire_->close(side_, false); }
  void send(std::string frame) override { wire_->send(side_, std::move(frame)); }
  size_t unsent_bytes() const override { return 0; }
  void post_receive(uint64_t, Region, std::function<void(Result<size_t>)> done) override {
    done(environment_error("the simulated network has no puts"));
  }
  void cancel_receive(uint64_t) override {}
  void put(uint64_t, Region, std::function<void(Status)> done) override {
    done(environment_error("the simulated network has no puts"));
  }
  void close(int64_t flush_ms) override { wire_->close(side_, flush_ms > 0); }
  std::string description() const override {
    return side_ == 0 ? wire_->address() : wire_->process(0)->host;
  }

 private:
  const std::shared_ptr<SimWire> wire_;
  const int side_;
};

}  // namespace

void SimWire::accept() {
  if (sides_[0].is_down || sides_[0].is_closing) return;
  core::Time wait = partitioned_until() - network_->world_.now();
  auto listener = network_->listeners_.find(address_);
  if (wait > 0 || listener == network_->listeners_.end()) return end(0, "nobody listens there");
  sides_[1].process = listener->second.process;
  was_accepted_ = true;
  auto link = std::make_shared<SimLink>(shared_from_this(), 1);
  auto accept = listener->second.accept;
  enter(1, [&] { sides_[1].handler = accept(link); });
  if (!sides_[1].handler) return end(0, "it was rejected");
  for (int side : {1, 0}) {
    auto handler = sides_[side].handler;
    if (handler) enter(side, [&] { handler->on_up(); });
  }
}

class SimTransport final : public Transport {
 public:
  SimTransport(SimNetwork& network, std::shared_ptr<SimProcess> process)
      : network_(network), process_(std::move(process)) {}
  ~SimTransport() override {
    for (const auto& wire : network_.wires_of(process_->host)) {
      for (int side : {0, 1})
        if (wire->process(side) == process_.get()) wire->kill(side, false);
    }
  }

  std::string name() const override { return "simulated"; }
  bool takes_device_memory() const override { return false; }

  Result<std::unique_ptr<Listener>> listen(
      const std::string& address,
      std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)> accept) override {
    network_.listeners_[address] = {process_, std::move(accept)};
    return std::unique_ptr<Listener>(std::make_unique<SimListener>(network_, address));
  }

  Result<std::shared_ptr<Link>> connect(const std::string& address,
                                        std::shared_ptr<LinkHandler> handler) override {
    auto wire = std::make_shared<SimWire>(network_, process_, address, std::move(handler));
    network_.wires_.push_back(wire);
    wire->begin();
    return std::shared_ptr<Link>(std::make_shared<SimLink>(wire, 0));
  }

 private:
  class SimListener final : public Listener {
   public:
    SimListener(SimNetwork& network, std::string address)
        : network_(network), address_(std::move(address)) {}
    ~SimListener() override { network_.listeners_.erase(address_); }
    std::string address() const override { return address_; }

   private:
    SimNetwork& network_;
    const std::string address_;
  };

  SimNetwork& network_;
  const std::shared_ptr<SimProcess> process_;
};

SimNetwork::SimNetwork(World& world, std::function<uint64_t()> stamp)
    : world_(world), stamp_(std::move(stamp)) {}

SimNetwork::~SimNetwork() {
  for (const auto& each : wires_)
    if (auto wire = each.lock()) wire->leave_network();
}

std::unique_ptr<Transport> SimNetwork::transport(std::shared_ptr<SimProcess> process) {
  return std::make_unique<SimTransport>(*this, std::move(process));
}

core::Time SimNetwork::delay() {
  core::Time delay = 1 + world_.random.below(8);
  if (world_.random.one_in(12)) delay += world_.random.below(80);
  return delay;
}

std::vector<std::shared_ptr<SimWire>> SimNetwork::wires_of(const std::string& host) {
  std::vector<std::shared_ptr<SimWire>> found;
  std::erase_if(wires_, [&](const std::weak_ptr<SimWire>& each) {
    auto wire = each.lock();
    if (!wire || wire->is_down()) return true;
    for (int side : {0, 1})
      if (wire->process(side) != nullptr && wire->process(side)->host == host)
        found.push_back(wire);
    return false;
  });
  return found;
}

void SimNetwork::kill(SimProcess& process, bool is_machine_gone) {
  process.is_alive = false;
  std::erase_if(listeners_,
                [&](const auto& each) { return each.second.process.get() == &process; });
  for (const auto& wire : wires_of(process.host)) {
    for (int side : {0, 1})
      if (wire->process(side) == &process) wire->kill(side, is_machine_gone);
  }
}

void SimNetwork::cut(const std::string& host) {
  for (const auto& wire : wires_of(host)) wire->cut("the link broke");
}

void SimNetwork::partition(const std::string& host, core::Time ms) {
  core::Time& until = partitioned_until_[host];
  until = std::max(until, world_.now() + ms);
}

void SimNetwork::fault_next_frame(const std::string& host, FrameFault fault) {
  for (const auto& wire : wires_of(host))
    wire->fault_next_frame(static_cast<int>(world_.random.below(2)), fault);
}

}  // namespace flow::sim
