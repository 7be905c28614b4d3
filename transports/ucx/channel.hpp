// One link's end, as the net thread sees it: the endpoint, what goes, what comes, how it ends.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flow/transport.hpp"
#include "transports/ucx/sockets.hpp"
#include "transports/ucx/ucx_thread.hpp"
#include "transports/ucx/wire.hpp"

namespace flow::ucx {

/// Of a frame that goes: its bytes lie still until UCX has given back every piece of them.
struct Outgoing {
  std::string bytes;
  size_t posted = 0;
};

struct Put {
  Channel* channel = nullptr;
  PutHead head;
  PutBegin begin;
  Region from;
  std::function<void(Status)> done;
  size_t posted = 0;    // in pieces
  size_t requests = 0;  // that UCX reads `from` or this for
  bool is_answered = false;
  PutOutcome outcome = PutOutcome::there;
};

struct PostedReceive {
  Region to;
  std::function<void(Result<size_t>)> done;
};

struct Arriving {
  PostedReceive posted_receive;
  size_t size = 0, arrived = 0;
};

/// A rendezvous that comes.
struct Receive {
  Channel* channel = nullptr;
  uint32_t id = 0;
  size_t size = 0;
  PostedReceive posted_receive;
};

/// One message with a Head: UCX 1.13 needs the header until the message has gone.
struct Message {
  Channel* channel = nullptr;
  Head head;
  std::shared_ptr<Outgoing> frame;
  Put* put = nullptr;
};

/// On the net thread only, but for what is said to be otherwise. Lives until UCX has given back
/// everything of it. It sends nothing within a callback of UCX's: UCX 1.13 ends the process where
/// an endpoint that it has news of is found broken before it comes to that.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  Channel(UcxThread& ucx_thread, std::string address)
      : ucx_thread_(ucx_thread),
        address_(std::move(address)),
        deadline_ms_(ucx_thread.options.deadline_ms) {}

  void connect(const SocketAddress& address);
  void accept(ucp_listener_h listener, ucp_conn_request_h request);
  void set_handler(std::shared_ptr<LinkHandler> handler) { handler_ = std::move(handler); }
  void send(std::string frame);
  void put(uint64_t tag, Region from, std::function<void(Status)> done);
  void set_timeout(int64_t deadline_ms) { deadline_ms_ = deadline_ms; }
  void close(int64_t flush_ms);
  void fail(const std::string& why);
  /// Where it connects to nobody answers, or one who refuses it (a user's error).
  void connect_failed(const Error& why);

  void on_eager(const Head& head, const char* data, size_t size);
  ucs_status_t on_put(const PutHead& head, void* descriptor, size_t size);
  /// Does what is to be done outside UCX's callbacks.
  void run_pending();
  /// Looks at the clock. False: there is nothing that could be late.
  bool check_deadlines(int64_t now_us);
  void send_ack();
  void finish_canceled_receives();
  /// UCX gives back no more of it: it must live as long as the worker.
  bool is_abandoned() const { return is_over() && requests_ > 0; }
  bool is_over() const { return state_ == State::over; }
  bool is_coming_up() const { return !is_ending() && !has_agreed_; }
  bool is_scheduled = false, has_pending_ack = false;  // the net's marks

  /// Thread-safe.
  std::atomic<size_t> unsent{0};
  std::string description() const;
  /// From its return on; where it is refused, `done` is not used.
  Status post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done);
  /// From its return on nobody expects that tag; tell_given_up() is to follow.
  void cancel_receive(uint64_t tag);

 private:
  enum class State : uint8_t { opening, up, ending, over };
  bool is_ending() const { return state_ >= State::ending; }
  void open(ucp_ep_params_t& params);
  void flush();
  void flushed();
  void send_hello();
  void receive_hello(const char* data, size_t size);
  void describe();
  std::string failure(ucs_status_t status) const;

  // channel_send.cc
  void progress();
  bool has_window() const;
  void post_next_chunk();
  void post_next_put_chunk();
  void post(Message* message, const void* data, size_t size);
  void post(MessageKind kind);
  void post_answers();
  void sent(Message* message, ucs_status_t status);
  void start_puts();
  void start(Put& put);
  void start_rendezvous(Put& put);
  void answered(uint32_t id, PutOutcome outcome);
  void finish_if_complete(Put& put);
  Message* new_message(MessageKind kind);
  bool is_all_acked() const;

  // channel_receive.cc
  bool receive_ack(const Head& head);
  void receive_chunk(const Head& head, const char* data, size_t size);
  void begin_put(const Head& head, const char* data, size_t size);
  void receive_put_chunk(const Head& head, const char* data, size_t size);
  void count_received(size_t bytes);
  void answer(uint32_t id, PutOutcome outcome);
  std::unique_ptr<PostedReceive> forget(uint64_t tag);  // null where nobody expected it
  std::unique_ptr<PostedReceive> take_posted_receive(uint64_t tag, uint32_t id, size_t size);
  void received(Receive* receive, ucs_status_t status);
  void forget_receives(std::vector<std::function<void(Result<size_t>)>>& dones);

  void request_completed();  // a request of UCX's
  void force_close();
  void finish();

  UcxThread& ucx_thread_;
  const std::string address_;
  int64_t deadline_ms_;
  State state_ = State::opening;
  std::shared_ptr<LinkHandler> handler_;
  ucp_ep_h endpoint_ = nullptr;
  bool has_agreed_ = false;  // both ends have, on their lanes
  bool has_sent_hello_ = false, has_hello_ = false;
  bool must_send_goodbye_ = false;
  int64_t force_closed_us_ = 0;
  bool is_forgotten_ = false;
  size_t requests_ = 0;  // that UCX has not given back
  std::string why_;
  bool is_refused_ = false;  // by the peer, for good
  int64_t began_us_ = 0;     // waiting for the peer: to answer, or to take
  bool is_moving_ = false;   // it has taken something since the last look
  int64_t closing_us_ = 0;   // where it closes: until when what was sent may go
  Hello hello_;
  bool peer_takes_device_ = false;
  std::string peer_version_;

  std::deque<std::shared_ptr<Outgoing>> queue_;
  uint32_t sequence_ = 0;
  uint64_t sent_bytes_ = 0, acked_bytes_ = 0;
  uint32_t sent_chunks_ = 0, acked_chunks_ = 0;
  std::unique_ptr<Message> spare_;
  std::deque<std::unique_ptr<Put>> waiting_puts_;
  std::deque<Put*> posting_;  // pieces of them are still to go
  bool is_puts_turn_ = false;
  std::unordered_map<uint32_t, std::unique_ptr<Put>> puts_;
  uint32_t last_put_ = 0;

  uint32_t peer_sequence_ = 0;
  uint64_t received_bytes_ = 0, advertised_bytes_ = 0;
  uint32_t received_chunks_ = 0, advertised_chunks_ = 0;
  std::string frame_;      // its first pieces
  size_t frame_left_ = 0;  // bytes that it lacks
  std::unordered_map<uint32_t, Arriving> arriving_;
  std::vector<std::pair<uint32_t, PutOutcome>> answers_;  // to puts, that are owed
  bool must_send_ack_ = false;
  std::unordered_map<Receive*, std::unique_ptr<Receive>> receives_;

  mutable std::mutex mutex_;  // of what follows
  std::string lanes_;
  std::unordered_map<uint64_t, PostedReceive> posted_receives_;
  std::vector<PostedReceive> canceled_receives_;
  bool is_receiving_closed_ = false;  // expects nothing any more
};

}  // namespace flow::ucx
