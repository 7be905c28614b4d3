// A transport over another one that sees all data, and changes it as an attacker on the network
// could.
#pragma once
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flow/transport.hpp"

namespace flow {

/// The network between the ends of all links.
struct Network {
  std::mutex mutex;
  std::string seen;  // frames and puts
  /// Returns the frames that arrive in place of `frame`. `is_first`: at the end that connected;
  /// `own`: the frames that this end has sent.
  std::function<std::vector<std::string>(bool is_first, std::string frame,
                                         const std::vector<std::string>& own)>
      on_frame;
  std::function<void(char* data, size_t size)> on_put;
  std::shared_ptr<LinkHandler> second;  // handler of the accepting end of the newest link
  size_t sent = 0, arrived = 0;         // frames from connecting to accepting ends

  bool has_seen(std::string_view text) {
    std::lock_guard lock(mutex);
    return seen.find(text) != std::string::npos;
  }
};

/// One end of a link.
struct TapEnd {
  std::shared_ptr<Network> network;
  bool is_first = false;
  std::vector<std::string> own;
};

class TapHandler final : public LinkHandler {
 public:
  TapHandler(std::shared_ptr<LinkHandler> handler, std::shared_ptr<TapEnd> end)
      : handler_(std::move(handler)), end_(std::move(end)) {}
  void on_up() override { handler_->on_up(); }
  void on_frame(std::string_view frame) override {
    std::vector<std::string> instead{std::string(frame)};
    {
      std::lock_guard lock(end_->network->mutex);
      if (!end_->is_first) end_->network->arrived++;
      if (end_->network->on_frame)
        instead = end_->network->on_frame(end_->is_first, instead[0], end_->own);
    }
    for (const std::string& one : instead) handler_->on_frame(one);
  }
  void on_down(const Error& why) override { handler_->on_down(why); }

 private:
  const std::shared_ptr<LinkHandler> handler_;
  const std::shared_ptr<TapEnd> end_;
};

class TapLink final : public Link {
 public:
  TapLink(std::shared_ptr<Link> link, std::shared_ptr<TapEnd> end)
      : link_(std::move(link)), end_(std::move(end)) {}
  ~TapLink() override { link_->close(0); }
  void send(std::string frame) override {
    {
      std::lock_guard lock(end_->network->mutex);
      if (end_->is_first) end_->network->sent++;
      end_->network->seen += frame;
      end_->own.push_back(frame);
    }
    link_->send(std::move(frame));
  }
  size_t unsent_bytes() const override { return link_->unsent_bytes(); }
  void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) override {
    link_->post_receive(tag, to, std::move(done));
  }
  void cancel_receive(uint64_t tag) override { link_->cancel_receive(tag); }
  void put(uint64_t tag, Region from, std::function<void(Status)> done) override {
    auto data = std::make_shared<std::string>(static_cast<const char*>(from.data), from.size);
    {
      std::lock_guard lock(end_->network->mutex);
      end_->network->seen += *data;
      if (end_->network->on_put) end_->network->on_put(data->data(), data->size());
    }
    link_->put(tag, {data->data(), data->size(), false},
               [data, done = std::move(done)](Status there) { done(std::move(there)); });
  }
  void close(int64_t flush_ms) override { link_->close(flush_ms); }
  std::string description() const override { return link_->description(); }

 private:
  const std::shared_ptr<Link> link_;
  const std::shared_ptr<TapEnd> end_;
};

class TapTransport final : public Transport {
 public:
  TapTransport(std::unique_ptr<Transport> transport, std::shared_ptr<Network> network)
      : network_(std::move(network)), transport_(std::move(transport)) {}
  std::string name() const override { return transport_->name(); }
  Result<std::unique_ptr<Listener>> listen(
      const std::string& address,
      std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)> accept) override {
    return transport_->listen(
        address,
        [network = network_, accept](std::shared_ptr<Link> link) -> std::shared_ptr<LinkHandler> {
          auto end = std::make_shared<TapEnd>(TapEnd{network, false, {}});
          auto handler = accept(std::make_shared<TapLink>(std::move(link), end));
          std::lock_guard lock(network->mutex);
          network->second = handler;
          return handler ? std::make_shared<TapHandler>(handler, end) : nullptr;
        });
  }
  Result<std::shared_ptr<Link>> connect(const std::string& address,
                                        std::shared_ptr<LinkHandler> handler) override {
    auto end = std::make_shared<TapEnd>(TapEnd{network_, true, {}});
    auto link = transport_->connect(address, std::make_shared<TapHandler>(std::move(handler), end));
    if (!link.ok()) return link;
    return std::shared_ptr<Link>(std::make_shared<TapLink>(std::move(*link), end));
  }
  bool takes_device_memory() const override { return transport_->takes_device_memory(); }

 private:
  const std::shared_ptr<Network> network_;
  const std::unique_ptr<Transport> transport_;
};

}  // namespace flow
