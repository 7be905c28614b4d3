#include "transports/inproc/connection.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "engine/base/clock.hpp"

namespace flow::inproc {

namespace {

constexpr int64_t kUsPerMs = 1000;
constexpr int kConnected = 0, kListened = 1;

class WatchedSide final : public Watched {
 public:
  WatchedSide(std::shared_ptr<Connection> connection, int side)
      : connection_(std::move(connection)), side_(side) {}
  void look(int64_t now_us) override { connection_->look(side_, now_us); }
  void end() override {
    connection_->end(side_, environment_error("the transport of this link was destroyed"),
                     connection_->ended_by_peer(1 - side_));
  }

 private:
  std::shared_ptr<Connection> connection_;
  int side_;
};

class InprocLink final : public Link {
 public:
  InprocLink(std::shared_ptr<Connection> connection, int side)
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
  std::shared_ptr<Connection> connection_;
  int side_;
};

Result<size_t> copy(const Item& item, const Region& to) {
  if (item.from.size > to.size) {
    return environment_error(fmt::format("a put of {} bytes came for tag {}, where {} fit",
                                         item.from.size, item.tag, to.size));
  }
  if (item.from.size > 0) std::memcpy(to.data, item.from.data, item.from.size);
  return item.from.size;
}

}  // namespace

std::shared_ptr<Link> make_link(std::shared_ptr<Connection> connection, int side) {
  return std::make_shared<InprocLink>(std::move(connection), side);
}

Connection::Connection(std::shared_ptr<Loop> from, std::shared_ptr<Loop> to,
                       const std::string& from_address, const std::string& to_address) {
  ends_[kConnected].loop = std::move(from);
  ends_[kConnected].address = to_address;
  ends_[kListened].loop = std::move(to);
  ends_[kListened].address = from_address;
}

void Connection::begin(std::shared_ptr<LinkHandler> handler, int64_t deadline_ms,
                       int64_t peer_deadline_ms) {
  {
    std::lock_guard lock(mutex_);
    ends_[kConnected].handler = std::move(handler);
    ends_[kConnected].deadline_us = deadline_ms * kUsPerMs;
    ends_[kListened].deadline_us = peer_deadline_ms * kUsPerMs;
    for (End& end : ends_) end.taken_us = monotonic_us();
  }
  for (int side : {kConnected, kListened}) {
    auto watched = std::make_shared<WatchedSide>(shared_from_this(), side);
    if (!ends_[side].loop->watch(this, watched)) {
      return end(1 - side, ended_by_peer(1 - side),
                 environment_error("the transport of this link was destroyed"));
    }
  }
}

void Connection::accept(
    const std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)>& accept) {
  std::shared_ptr<LinkHandler> handler = accept(make_link(shared_from_this(), kListened));
  if (!handler) {
    return end(kListened, environment_error("the link was refused here"),
               environment_error(fmt::format("{} refused the link", ends_[kConnected].address)));
  }
  if (!come_up(handler)) handler->on_down(ended_by_peer(kListened));
}

bool Connection::come_up(const std::shared_ptr<LinkHandler>& handler) {
  std::lock_guard lock(mutex_);
  if (is_down_) return false;
  is_up_ = true;
  ends_[kListened].handler = handler;
  for (int side : {kConnected, kListened}) {
    End& end = ends_[side];
    end.taken_us = monotonic_us();
    end.loop->post([to = end.handler] { to->on_up(); });
    tell_to_drain(side);
  }
  return true;
}

Error Connection::ended_by_peer(int side) const {
  return environment_error(fmt::format("the peer {} closed the link", ends_[side].address));
}

void Connection::send(int side, std::string frame) {
  if (frame.size() > kFrameBytesMax) {
    Error why = internal_error(
        fmt::format("a frame of {} bytes was sent; {} are the most", frame.size(), kFrameBytesMax));
    return end(side, why, why);
  }
  Item item;
  item.frame = std::move(frame);
  enqueue(side, item);
}

void Connection::put(int side, uint64_t tag, Region from, std::function<void(Status)> done) {
  Item item;
  item.tag = tag;
  item.from = from;
  item.done = std::move(done);
  const char* why = from.is_device             ? "links within a process take no memory of a GPU"
                    : from.size > kPutBytesMax ? "a put was longer than kPutBytesMax"
                    : !enqueue(side, item)     ? "the link is down or is being closed"
                                               : nullptr;
  if (why == nullptr) return;
  answer(side, [done = std::move(item.done), why] { done(environment_error(why)); });
}

bool Connection::enqueue(int side, Item& item) {
  std::lock_guard lock(mutex_);
  End& to = ends_[1 - side];
  if (is_down_ || ends_[side].closing_us != 0) return false;
  if (to.inbox.empty()) to.taken_us = monotonic_us();
  to.inbox_bytes += item.size();
  to.inbox.push_back(std::move(item));
  tell_to_drain(1 - side);
  return true;
}

void Connection::answer(int side, std::function<void()> call) {
  // A transport that was destroyed has no thread, but memory must be given back.
  if (!ends_[side].loop->post(call)) call();
}

void Connection::tell_to_drain(int side) {
  End& end = ends_[side];
  if (!is_up_ || end.is_draining || end.inbox.empty()) return;
  end.is_draining = end.loop->post([self = shared_from_this(), side] { self->drain(side); });
}

void Connection::drain(int side) {
  while (std::function<void()> tell = take(side)) tell();
}

std::function<void()> Connection::take(int side) {
  std::lock_guard lock(mutex_);
  End& end = ends_[side];
  if (is_down_ || end.inbox.empty()) {
    end.is_draining = false;
    return nullptr;
  }
  Item item = std::move(end.inbox.front());
  end.inbox.pop_front();
  end.inbox_bytes -= item.size();
  end.taken_us = monotonic_us();
  if (item.done) return take_put(side, item);
  return [to = end.handler, frame = std::move(item.frame)] { to->on_frame(frame); };
}

std::function<void()> Connection::take_put(int side, Item& item) {
  Loop& sender = *ends_[1 - side].loop;
  auto& all = ends_[side].expected;
  auto found = all.find(item.tag);
  if (found == all.end()) {
    sender.post([done = std::move(item.done), tag = item.tag] {
      done(environment_error(fmt::format("the peer expects no put of tag {}", tag)));
    });
    return [] {};
  }
  Expected expected = std::move(found->second);
  all.erase(found);
  Result<size_t> copied = copy(item, expected.to);
  sender.post([done = std::move(item.done), copied] {
    done(copied.ok() ? Status() : Status(copied.error()));
  });
  return [done = std::move(expected.done), copied] { done(copied); };
}

size_t Connection::unsent_bytes(int side) {
  std::lock_guard lock(mutex_);
  return ends_[1 - side].inbox_bytes;
}

void Connection::post_receive(int side, uint64_t tag, Region to,
                              std::function<void(Result<size_t>)> done) {
  const char* why = to.is_device ? "links within a process take no memory of a GPU"
                                 : remember(side, tag, Expected{to, done});
  if (why == nullptr) return;
  answer(side, [done = std::move(done), tag, why] {
    done(environment_error(fmt::format("no put of tag {} is awaited: {}", tag, why)));
  });
}

const char* Connection::remember(int side, uint64_t tag, Expected expected) {
  std::lock_guard lock(mutex_);
  if (is_down_) return "the link is down";
  bool is_new = ends_[side].expected.emplace(tag, std::move(expected)).second;
  return is_new ? nullptr : "its tag is expected already";
}

void Connection::cancel_receive(int side, uint64_t tag) {
  std::lock_guard lock(mutex_);
  auto found = ends_[side].expected.find(tag);
  if (found == ends_[side].expected.end()) return;
  ends_[side].loop->post([done = std::move(found->second.done)] {
    done(environment_error("nobody waits for the put any more"));
  });
  ends_[side].expected.erase(found);
}

void Connection::set_timeout(int side, int64_t deadline_ms) {
  std::lock_guard lock(mutex_);
  ends_[side].deadline_us = deadline_ms * kUsPerMs;
}

void Connection::close(int side, int64_t flush_ms) {
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

void Connection::look(int side, int64_t now_us) {
  bool is_flushed = false;
  std::string why;
  {
    std::lock_guard lock(mutex_);
    const End& own = ends_[side];
    const End& peer = ends_[1 - side];
    if (is_down_) return own.loop->forget(this);
    bool is_empty = peer.inbox.empty();
    if (own.closing_us != 0 && ((is_up_ && is_empty) || now_us >= own.closing_us)) {
      is_flushed = true;
    } else if ((!is_up_ || !is_empty) && now_us - peer.taken_us > own.deadline_us) {
      why = fmt::format("{} {} for {} ms", own.address,
                        is_up_ ? "has taken nothing of what was sent" : "has not answered",
                        own.deadline_us / kUsPerMs);
    }
  }
  if (is_flushed) close(side, 0);
  if (!why.empty()) end(side, environment_error(why), ended_by_peer(1 - side));
}

void Connection::end(int side, const Error& why, const Error& peers) {
  std::lock_guard lock(mutex_);
  if (std::exchange(is_down_, true)) return;
  std::function<void()> own_words = last_words(side, why);
  std::function<void()> peers_words = last_words(1 - side, peers);
  ends_[side].loop->post(std::move(own_words));
  ends_[1 - side].loop->post(std::move(peers_words));
  for (End& end : ends_) end.loop->forget(this);
}

std::function<void()> Connection::last_words(int side, const Error& why) {
  End& end = ends_[side];
  std::vector<std::function<void(Status)>> puts;
  for (Item& item : ends_[1 - side].inbox) {
    if (item.done) puts.push_back(std::move(item.done));
  }
  ends_[1 - side].inbox.clear();
  ends_[1 - side].inbox_bytes = 0;
  return [puts = std::move(puts), expected = std::move(end.expected),
          handler = std::exchange(end.handler, nullptr), why] {
    for (const auto& done : puts) done(why);
    for (const auto& [tag, each] : expected) each.done(why);
    if (handler) handler->on_down(why);
  };
}

std::string Connection::description(int side) { return ends_[side].address + " (inproc)"; }

}  // namespace flow::inproc
