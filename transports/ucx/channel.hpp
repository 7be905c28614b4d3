// One end of a link on the UCX thread: the endpoint, outgoing data, incoming data, and how it ends.
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

/// An outgoing frame: its bytes stay unchanged until UCX has completed every chunk.
struct OutgoingFrame {
  std::string bytes;
  size_t posted = 0;
};

struct Put {
  Channel* channel = nullptr;
  PutHead head;
  PutBegin begin;
  Region from;
  std::function<void(Status)> done;
  size_t posted = 0;    // in chunks
  size_t requests = 0;  // requests of UCX that read `from` or this struct
  bool is_answered = false;
  PutOutcome outcome = PutOutcome::there;
};

struct UcxReceive {
  Region to;
  std::function<void(Result<size_t>)> done;
};

struct IncomingPut {
  UcxReceive posted_receive;
  size_t size = 0, arrived = 0;
};

/// An incoming rendezvous.
struct Receive {
  Channel* channel = nullptr;
  uint32_t id = 0;
  size_t size = 0;
  UcxReceive posted_receive;
};

/// One message with a Head: UCX 1.13 needs the header until the message is sent.
struct Message {
  Channel* channel = nullptr;
  Head head;
  std::shared_ptr<OutgoingFrame> frame;
  Put* put = nullptr;
};

/// On the UCX thread only, except where noted. Lives until UCX has completed all its requests. It
/// sends nothing within a callback of UCX: UCX 1.13 crashes if it finds an endpoint broken there
/// for which it has not reported that yet.
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
  /// The peer does not answer, or rejects the connection (a user error).
  void connect_failed(const Error& why);

  void on_eager(const Head& head, const char* data, size_t size);
  ucs_status_t on_put(const PutHead& head, void* descriptor, size_t size);
  /// Runs work that is not allowed in UCX's callbacks.
  void run_pending();
  /// Checks the clock. False: nothing has a deadline.
  bool check_deadlines(int64_t now_us);
  void send_ack();
  void finish_canceled_receives();
  /// UCX will not complete its last requests: it must live as long as the worker.
  bool is_abandoned() const { return is_over() && requests_ > 0; }
  bool is_over() const { return state_ == State::over; }
  bool is_coming_up() const { return !is_ending() && !has_agreed_; }
  bool is_scheduled = false, has_pending_ack = false;  // flags of UcxThread

  /// Thread-safe.
  std::atomic<size_t> unsent{0};
  std::string description() const;
  /// Effective when it returns; if it is rejected, `done` is not called.
  Status post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done);
  /// After it returns no receive is posted for that tag; call finish_canceled_receives() next.
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
  void post_put_outcomes();
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
  std::unique_ptr<UcxReceive> forget(uint64_t tag);  // null if no receive was posted
  std::unique_ptr<UcxReceive> take_posted_receive(uint64_t tag, uint32_t id, size_t size);
  void received(Receive* receive, ucs_status_t status);
  void forget_receives(std::vector<std::function<void(Result<size_t>)>>& dones);

  void request_completed();  // a request of UCX
  void force_close();
  void finish();

  UcxThread& ucx_thread_;
  const std::string address_;
  int64_t deadline_ms_;
  State state_ = State::opening;
  std::shared_ptr<LinkHandler> handler_;
  ucp_ep_h endpoint_ = nullptr;
  bool has_agreed_ = false;  // both ends have agreed on their lanes
  bool has_sent_hello_ = false, has_hello_ = false;
  bool must_send_goodbye_ = false;
  int64_t force_closed_us_ = 0;
  bool is_forgotten_ = false;
  size_t requests_ = 0;  // not completed by UCX
  std::string why_;
  bool is_refused_ = false;  // permanently rejected by the peer
  int64_t began_us_ = 0;     // when it began to wait for the peer to answer or acknowledge
  bool is_moving_ = false;   // the peer has acknowledged data since the last check
  int64_t closing_us_ = 0;   // while it closes: deadline for sending queued data
  ChannelHello hello_;
  bool peer_takes_device_ = false;
  std::string peer_version_;

  std::deque<std::shared_ptr<OutgoingFrame>> queue_;
  uint32_t sequence_ = 0;
  uint64_t sent_bytes_ = 0, acked_bytes_ = 0;
  uint32_t sent_chunks_ = 0, acked_chunks_ = 0;
  std::unique_ptr<Message> spare_;
  std::deque<std::unique_ptr<Put>> waiting_puts_;
  std::deque<Put*> posting_;  // some of their chunks are still to be sent
  bool is_puts_turn_ = false;
  std::unordered_map<uint32_t, std::unique_ptr<Put>> puts_;
  uint32_t last_put_ = 0;

  uint32_t peer_sequence_ = 0;
  uint64_t received_bytes_ = 0, advertised_bytes_ = 0;
  uint32_t received_chunks_ = 0, advertised_chunks_ = 0;
  std::string frame_;      // its first chunks
  size_t frame_left_ = 0;  // missing bytes
  std::unordered_map<uint32_t, IncomingPut> incoming_puts_;
  std::vector<std::pair<uint32_t, PutOutcome>> put_outcomes_;  // to puts of the peer, to be sent
  bool must_send_ack_ = false;
  std::unordered_map<Receive*, std::unique_ptr<Receive>> receives_;

  mutable std::mutex mutex_;  // guards the members below
  std::string lanes_;
  std::unordered_map<uint64_t, UcxReceive> posted_receives_;
  std::vector<UcxReceive> canceled_receives_;
  bool is_receiving_closed_ = false;  // accepts no more receives
};

}  // namespace flow::ucx
