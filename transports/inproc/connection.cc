#include "transports/inproc/connection.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "engine/base/clock.hpp"

namespace flow::inproc {

namespace {

constexpr int64_t kUsPerMs = 1000;
constexpr int kConnected = 0, kListened = 1;

class ConnectionLoopClient final : public LoopClient {
 public:
  ConnectionLoopClient(std::shared_ptr<InprocConnection> connection, int side)
      : connection_(std::move(connection)), side_(side) {}
  void check_deadlines(int64_t now_us) override { connection_->check_deadlines(side_, now_us); }
  void end() override {
    connection_->end(side_, environment_error("the transport of this link was destroyed"),
                     connection_->ended_by_peer(1 - side_));
  }

 private:
  std::shared_ptr<InprocConnection> connection_;
  int side_;
};

class InprocLink final : public Link {
 public:
  InprocLink(std::shared_ptr<InprocConnection> connection, int side)
      : connection_(std::move(connection)), side_(side) {}
  ~InprocLink() override { close(0); }
  void send(std::string frame) override { connection_->send(side_, std::move(frame)); }
  size_t unsent_bytes() const override { return connection_->unsent_bytes(side_); }
  void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) override {
    connection_->post_receive(side_, tag, to, std::move(done));
  }
  void cancel_receive(uint64_t tag) override { connection_->cancel_receive(side_, tag); }
  void put(uint64_t tag, Region from, std::function<void(Status)> done) override {
    connection_->put(side_, tag, from, std::move(done));
  }
  void set_timeout(int64_t deadline_ms) override { connection_->set_timeout(side_, deadline_ms); }
  void close(int64_t flush_ms) override { connection_->close(side_, flush_ms); }
  std::string description() const override { return connection_->description(side_); }

 private:
  std::shared_ptr<InprocConnection> connection_;
  int side_;
};

Result<size_t> copy(const Item& item, const Region& to) {
  if (item.from.size > to.size) {
    return environment_error(fmt::format("a put of {} bytes was received for tag {}, where {} fit",
                                         item.from.size, item.tag, to.size));
  }
  if (item.from.size > 0) std::memcpy(to.data, item.from.data, item.from.size);
  return item.from.size;
}

}  // namespace

std::shared_ptr<Link> make_link(std::shared_ptr<InprocConnection> connection, int side) {
  return std::make_shared<InprocLink>(std::move(connection), side);
}

InprocConnection::InprocConnection(std::shared_ptr<EventLoop> from, std::shared_ptr<EventLoop> to,
                                   const std::string& from_address, const std::string& to_address) {
  ends_[kConnected].loop = std::move(from);
  ends_[kConnected].address = to_address;
  ends_[kListened].loop = std::move(to);
  ends_[kListened].address = from_address;
}

void InprocConnection::begin(std::shared_ptr<LinkHandler> handler, int64_t deadline_ms,
                             int64_t peer_deadline_ms) {
  {
    std::lock_guard lock(mutex_);
    ends_[kConnected].handler = std::move(handler);
    ends_[kConnected].deadline_us = deadline_ms * kUsPerMs;
    ends_[kListened].deadline_us = peer_deadline_ms * kUsPerMs;
    for (ConnectionEnd& end : ends_) end.progress_us = monotonic_us();
  }
  for (int side : {kConnected, kListened}) {
    auto watched = std::make_shared<ConnectionLoopClient>(shared_from_this(), side);
    if (!ends_[side].loop->watch(this, watched)) {
      return end(1 - side, ended_by_peer(1 - side),
                 environment_error("the transport of this link was destroyed"));
    }
  }
}

void InprocConnection::accept(
    const std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)>& accept) {
  std::shared_ptr<LinkHandler> handler = accept(make_link(shared_from_this(), kListened));
  if (!handler) {
    return end(kListened, environment_error("the link was rejected here"),
               environment_error(fmt::format("{} rejected the link", ends_[kConnected].address)));
  }
  if (!set_up(handler)) handler->on_down(ended_by_peer(kListened));
}

bool InprocConnection::set_up(const std::shared_ptr<LinkHandler>& handler) {
  std::lock_guard lock(mutex_);
  if (is_down_) return false;
  is_up_ = true;
  ends_[kListened].handler = handler;
  for (int side : {kConnected, kListened}) {
    ConnectionEnd& end = ends_[side];
    end.progress_us = monotonic_us();
    end.loop->post([to = end.handler] { to->on_up(); });
    schedule_drain(side);
  }
  return true;
}

Error InprocConnection::ended_by_peer(int side) const {
  return environment_error(fmt::format("the peer {} closed the link", ends_[side].address));
}

void InprocConnection::send(int side, std::string frame) {
  if (frame.size() > kFrameBytesMax) {
    Error why = internal_error(
        fmt::format("a frame has {} bytes; the maximum is {}", frame.size(), kFrameBytesMax));
    return end(side, why, why);
  }
  Item item;
  item.frame = std::move(frame);
  enqueue(side, item);
}

void InprocConnection::put(int side, uint64_t tag, Region from, std::function<void(Status)> done) {
  Item item;
  item.tag = tag;
  item.from = from;
  item.done = std::move(done);
  const char* why = from.is_device             ? "links within a process do not support GPU memory"
                    : from.size > kPutBytesMax ? "a put was longer than kPutBytesMax"
                    : !enqueue(side, item)     ? "the link is down or is being closed"
                                               : nullptr;
  if (why == nullptr) return;
  post_or_call(side, [done = std::move(item.done), why] { done(environment_error(why)); });
}

bool InprocConnection::enqueue(int side, Item& item) {
  std::lock_guard lock(mutex_);
  ConnectionEnd& to = ends_[1 - side];
  if (is_down_ || ends_[side].closing_us != 0) return false;
  if (to.inbox.empty()) to.progress_us = monotonic_us();
  to.inbox_bytes += item.size();
  to.inbox.push_back(std::move(item));
  schedule_drain(1 - side);
  return true;
}

void InprocConnection::post_or_call(int side, std::function<void()> call) {
  // A transport that was destroyed has no thread, but the memory must still be released.
  if (!ends_[side].loop->post(call)) call();
}

void InprocConnection::schedule_drain(int side) {
  ConnectionEnd& end = ends_[side];
  if (!is_up_ || end.is_draining || end.inbox.empty()) return;
  end.is_draining = end.loop->post([self = shared_from_this(), side] { self->drain(side); });
}

void InprocConnection::drain(int side) {
  while (std::function<void()> deliver = next_delivery(side)) deliver();
}

std::function<void()> InprocConnection::next_delivery(int side) {
  std::lock_guard lock(mutex_);
  ConnectionEnd& end = ends_[side];
  if (is_down_ || end.inbox.empty()) {
    end.is_draining = false;
    return nullptr;
  }
  Item item = std::move(end.inbox.front());
  end.inbox.pop_front();
  end.inbox_bytes -= item.size();
  end.progress_us = monotonic_us();
  if (item.done) return on_put(side, item);
  return [to = end.handler, frame = std::move(item.frame)] { to->on_frame(frame); };
}

std::function<void()> InprocConnection::on_put(int side, Item& item) {
  EventLoop& sender = *ends_[1 - side].loop;
  auto& all = ends_[side].posted_receives;
  auto found = all.find(item.tag);
  if (found == all.end()) {
    sender.post([done = std::move(item.done), tag = item.tag] {
      done(environment_error(fmt::format("the peer has no receive posted for tag {}", tag)));
    });
    return [] {};
  }
  InprocReceive posted_receive = std::move(found->second);
  all.erase(found);
  Result<size_t> copied = copy(item, posted_receive.to);
  sender.post([done = std::move(item.done), copied] {
    done(copied.ok() ? Status() : Status(copied.error()));
  });
  return [done = std::move(posted_receive.done), copied] { done(copied); };
}

size_t InprocConnection::unsent_bytes(int side) {
  std::lock_guard lock(mutex_);
  return ends_[1 - side].inbox_bytes;
}

void InprocConnection::post_receive(int side, uint64_t tag, Region to,
                                    std::function<void(Result<size_t>)> done) {
  const char* why = to.is_device ? "links within a process do not support GPU memory"
                                 : add_receive(side, tag, InprocReceive{to, done});
  if (why == nullptr) return;
  post_or_call(side, [done = std::move(done), tag, why] {
    done(environment_error(fmt::format("cannot receive a put of tag {}: {}", tag, why)));
  });
}

const char* InprocConnection::add_receive(int side, uint64_t tag, InprocReceive posted_receive) {
  std::lock_guard lock(mutex_);
  if (is_down_) return "the link is down";
  bool is_new = ends_[side].posted_receives.emplace(tag, std::move(posted_receive)).second;
  return is_new ? nullptr : "the tag has a receive posted already";
}

void InprocConnection::cancel_receive(int side, uint64_t tag) {
  std::lock_guard lock(mutex_);
  auto found = ends_[side].posted_receives.find(tag);
  if (found == ends_[side].posted_receives.end()) return;
  ends_[side].loop->post([done = std::move(found->second.done)] {
    done(environment_error("the receive was canceled"));
  });
  ends_[side].posted_receives.erase(found);
}

void InprocConnection::set_timeout(int side, int64_t deadline_ms) {
  std::lock_guard lock(mutex_);
  ends_[side].deadline_us = deadline_ms * kUsPerMs;
}

void InprocConnection::close(int side, int64_t flush_ms) {
  {
    std::lock_guard lock(mutex_);
    if (is_down_) return;
    bool is_empty = is_up_ && ends_[1 - side].inbox.empty();
    if (flush_ms > 0 && !is_empty) {
      if (ends_[side].closing_us == 0)
        ends_[side].closing_us = monotonic_us() + flush_ms * kUsPerMs;
      return;
    }
  }
  end(side, environment_error("the link was closed"), ended_by_peer(1 - side));
}

void InprocConnection::check_deadlines(int side, int64_t now_us) {
  bool is_flushed = false;
  std::string why;
  {
    std::lock_guard lock(mutex_);
    const ConnectionEnd& own = ends_[side];
    const ConnectionEnd& peer = ends_[1 - side];
    if (is_down_) return own.loop->forget(this);
    bool is_empty = peer.inbox.empty();
    if (own.closing_us != 0 && ((is_up_ && is_empty) || now_us >= own.closing_us)) {
      is_flushed = true;
    } else if ((!is_up_ || !is_empty) && now_us - peer.progress_us > own.deadline_us) {
      why = fmt::format("{} {} for {} ms", own.address,
                        is_up_ ? "has acknowledged nothing" : "has not answered",
                        own.deadline_us / kUsPerMs);
    }
  }
  if (is_flushed) close(side, 0);
  if (!why.empty()) end(side, environment_error(why), ended_by_peer(1 - side));
}

void InprocConnection::end(int side, const Error& why, const Error& peers) {
  std::lock_guard lock(mutex_);
  if (std::exchange(is_down_, true)) return;
  std::function<void()> own_notification = final_notification(side, why);
  std::function<void()> peers_notification = final_notification(1 - side, peers);
  ends_[side].loop->post(std::move(own_notification));
  ends_[1 - side].loop->post(std::move(peers_notification));
  for (ConnectionEnd& end : ends_) end.loop->forget(this);
}

std::function<void()> InprocConnection::final_notification(int side, const Error& why) {
  ConnectionEnd& end = ends_[side];
  std::vector<std::function<void(Status)>> puts;
  for (Item& item : ends_[1 - side].inbox) {
    if (item.done) puts.push_back(std::move(item.done));
  }
  ends_[1 - side].inbox.clear();
  ends_[1 - side].inbox_bytes = 0;
  return [puts = std::move(puts), posted_receive = std::move(end.posted_receives),
          handler = std::exchange(end.handler, nullptr), why] {
    for (const auto& done : puts) done(why);
    for (const auto& [tag, each] : posted_receive) each.done(why);
    if (handler) handler->on_down(why);
  };
}

std::string InprocConnection::description(int side) { return ends_[side].address + " (inproc)"; }

}  // namespace flow::inproc
