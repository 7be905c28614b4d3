// The connection between two links of one process: data in flight, and how it ends.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "flow/transport.hpp"
#include "transports/inproc/loop.hpp"

namespace flow::inproc {

class InprocConnection;

/// A frame, or a put.
struct Item {
  std::string frame;
  uint64_t tag = 0;
  Region from;
  std::function<void(Status)> done;  // of a put
  size_t size() const { return done ? from.size : frame.size(); }
};

struct InprocReceive {
  Region to;
  std::function<void(Result<size_t>)> done;
};

/// One end: 0 connected, 1 accepted. The loop outlives the connection.
struct ConnectionEnd {
  std::shared_ptr<EventLoop> loop;
  std::shared_ptr<LinkHandler> handler;
  std::string address;  // the peer's
  int64_t deadline_us = 0;
  std::deque<Item> inbox;  // sent by the peer
  size_t inbox_bytes = 0;
  int64_t progress_us = 0;   // when an item was last received, or entered an empty inbox
  bool is_draining = false;  // a drain is posted to its loop
  int64_t closing_us = 0;    // while it closes: deadline for sending its queued items
  std::map<uint64_t, InprocReceive> posted_receives;
};

/// Thread-safe. No callback is called with the mutex held.
class InprocConnection : public std::enable_shared_from_this<InprocConnection> {
 public:
  InprocConnection(std::shared_ptr<EventLoop> from, std::shared_ptr<EventLoop> to,
                   const std::string& from_address, const std::string& to_address);

  /// From now on its loops check its deadlines.
  void begin(std::shared_ptr<LinkHandler> handler, int64_t deadline_ms, int64_t peer_deadline_ms);
  /// On the listener's loop.
  void accept(const std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)>& accept);

  void send(int side, std::string frame);
  size_t unsent_bytes(int side);
  void post_receive(int side, uint64_t tag, Region to, std::function<void(Result<size_t>)> done);
  void cancel_receive(int side, uint64_t tag);
  void put(int side, uint64_t tag, Region from, std::function<void(Status)> done);
  void set_timeout(int side, int64_t deadline_ms);
  void close(int side, int64_t flush_ms);
  std::string description(int side);

  /// Ends both sides once: `why` is reported to `side`, `peers` to the other one.
  void end(int side, const Error& why, const Error& peers);
  Error ended_by_peer(int side) const;
  void check_deadlines(int side, int64_t now_us);

 private:
  bool set_up(const std::shared_ptr<LinkHandler>& handler);  // false: it has ended
  bool enqueue(int side, Item& item);                        // false: the link is down or closing
  const char* add_receive(int side, uint64_t tag,
                          InprocReceive posted_receive);  // returns the reason if it is rejected
  void post_or_call(int side, std::function<void()> call);
  void drain(int side);
  /// The callback for the next item, or null.
  std::function<void()> next_delivery(int side);
  // With the mutex held:
  void schedule_drain(int side);
  std::function<void()> on_put(int side, Item& item);
  std::function<void()> final_notification(int side, const Error& why);

  std::mutex mutex_;
  ConnectionEnd ends_[2];
  bool is_up_ = false;
  bool is_down_ = false;
};

/// The link of a side; its destructor closes that side.
std::shared_ptr<Link> make_link(std::shared_ptr<InprocConnection> connection, int side);

}  // namespace flow::inproc
