// One connection of an HTTP server: it reads requests, with or without TLS, and writes responses in
// their order.
#pragma once
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/http/connection_table.hpp"
#include "engine/serve/http/http_options.hpp"
#include "engine/serve/http/http_request.hpp"
#include "engine/serve/http/http_response.hpp"
#include "engine/serve/http/http_upload.hpp"
#include "engine/serve/http/send_queue.hpp"

namespace flow {

/// State that all connections of a server share.
struct HttpShared {
  HttpShared(const HttpOptions& of, boost::asio::io_context& on)
      : options(of), context(on), table(of.limits.bytes_max) {
    options.rules.is_encrypted = of.tls.has_value();
  }

  HttpOptions options;              // only the hosts of its rules change
  std::shared_ptr<TlsContext> tls;  // null without TLS
  /// A request has arrived; respond() is called at once or later.
  std::function<void(HttpRequest, std::shared_ptr<HttpConnection>)> handle;
  std::function<void()> on_close;
  /// So many bytes of the connection do not fit: slow clients give way, if there are any.
  std::function<void(HttpConnection&, uint64_t bytes)> evict_slow;
  bool is_draining = false;
  // Buffers that one connection at a time uses, so that an idle connection costs little memory.
  std::vector<char> burst = std::vector<char>(256 * 1024);
  std::string plain;
  boost::asio::io_context& context;
  ConnectionTable table;
};

/// What the owner of a reply wants to know. Both are called on the server's thread.
struct ReplyEvents {
  std::function<void()> on_writable;  // after a write that said to wait
  std::function<void()> on_left;      // once, if the client leaves
};

/// Only the thread of the context uses it, but for is_abandoned() and post_write().
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  /// Owns the socket, which does not block. `shared` outlives the open connection.
  HttpConnection(HttpShared& shared, const boost::asio::ip::tcp& protocol, int socket);

  ConnectionTable::Entry& entry() { return entry_; }
  /// Reads the first request. The connection is in the table.
  void start() { start_read(); }
  /// Answers the request that was handled.
  void respond(HttpResponse response);
  // A response in parts, instead of respond(). HttpReply describes them.
  void watch(ReplyEvents events);
  void begin(HttpStreamHead head);
  bool write(std::string bytes);
  void end();
  void abort();
  /// For a thread that will have write_posted() called: takes note of the bytes, and returns what
  /// write() would.
  bool post_write(size_t size);
  void write_posted(std::string bytes, bool must_wait);
  /// Answers a request that is not whole, and ends the connection.
  void reject(const HttpError& error);
  /// The rest of a body that is handed on while it arrives will not come: the owner of the reply
  /// answers with this error, and the connection ends.
  void fail_upload(HttpError error);
  /// Ends the connection when the client has read everything: if a socket with unread bytes is
  /// closed, the client's system discards the response.
  void linger();
  /// Ends it at once, and leaves the table.
  void close();
  /// The response was not read within its time, which depends on its length.
  bool is_overdue(ConnectionTable::Clock::time_point now) const;
  /// It sends a body, of which less than 64 KiB have arrived within the last second.
  bool is_slow_sender(ConnectionTable::Clock::time_point now) const;
  /// It gets a response, of which less than 64 KiB were taken within the last second.
  bool is_slow_reader(ConnectionTable::Clock::time_point now) const;
  /// A body that is handed on while it arrives has been awaited since then, and nothing came.
  bool is_silent_sender(ConnectionTable::Clock::time_point since) const;

  /// The client sends no more, but it may still read.
  bool has_ended() const { return has_ended_; }
  bool is_abandoned() const { return is_abandoned_; }
  void abandon();

 private:
  static constexpr size_t kReadBytes = 4 * 1024;
  // Of a stream, in bytes that are not sent: beyond the first, its writer should wait until there
  // are no more than the second.
  static constexpr uint64_t kUnsentMax = 128 * 1024, kUnsentMin = 32 * 1024;
  // How the client finds the end of a stream's body.
  enum class Framing : uint8_t { none, length, chunks, close };

  void start_read();
  void on_read(const boost::system::error_code& error, size_t size);
  void read_more();
  void on_end();
  void receive(std::string_view bytes);
  void decrypt(std::string_view bytes);
  void consume(std::string_view bytes);
  void on_parsed(bool is_more_there);
  void keep_rest(std::string_view bytes);
  void consume_body(bool is_more_there);
  void ask_for_body();
  void dispatch_whole();
  void dispatch(HttpRequest request, uint64_t bytes);
  void reject_busy();

  void begin_upload(bool is_more_there);
  void continue_upload();
  void end_upload();
  void stop_upload();
  void on_upload_taken();
  void count_upload();
  bool is_upload_full() const { return is_uploading_ && upload_->is_full(); }

  const std::string& client_address();
  void record(const HttpRequest& request);
  void end_record(bool is_broken);
  void send(std::string head, std::string body, std::vector<Bytes> parts = {});
  void flush();
  void push(std::string bytes);
  void begin_writing();
  void pause_stream();
  void wake_writer();
  void report_left();
  void reset();
  void finish_response();
  void consume_rest();
  void hold(uint64_t bytes);
  bool fits(uint64_t bytes);
  bool reserve(uint64_t bytes);

  HttpShared& shared_;
  boost::asio::ip::tcp::socket socket_;
  ConnectionTable::Entry entry_;
  HttpRequestReader reader_;
  std::unique_ptr<TlsSession> tls_;  // null without TLS
  std::array<char, kReadBytes> in_;
  uint64_t unsent_seen_ = 0;  // of outgoing_, at unsent_seen_at_
  ConnectionTable::Clock::time_point unsent_seen_at_;
  uint64_t body_seen_ = 0;  // bytes of a body that had arrived at body_seen_at_
  ConnectionTable::Clock::time_point body_seen_at_;
  std::string rest_;             // bytes of later requests; reading pauses while there are some
  SendQueue outgoing_;           // responses, and what TLS says between them
  uint64_t response_bytes_ = 0;  // of the response, or the part of a stream, that is being sent
  uint64_t length_left_ = 0;     // of a stream with Framing::length
  std::shared_ptr<const ReplyEvents> events_;     // of the request that is being answered
  std::shared_ptr<RequestRecord> record_;         // of that request; null if it is not recorded
  std::shared_ptr<HttpUpload> upload_;            // its body, if that is handed on while it arrives
  ConnectionTable::Clock::time_point upload_at_;  // when a part of it came, or had been taken
  uint64_t held_ = 0;                             // bytes besides rest_ and upload_
  std::string client_;                            // its address, once it was needed
  Framing framing_ = Framing::none;
  bool is_streaming_ = false, is_stalled_ = false, is_aborted_ = false;
  bool is_reading_ = false, is_consuming_ = false, is_flushing_ = false, is_closed_ = false;
  bool is_uploading_ = false;     // more of upload_ will come
  bool awaits_continue_ = false;  // the client sends the body after `100 Continue`
  bool is_head_ = false;          // the request's method
  bool is_old_ = false;           // the request's version
  bool closes_ = false;           // after the response
  bool has_ended_ = false;
  std::atomic<bool> is_abandoned_{false};
  std::atomic<uint64_t> posted_{0};  // bytes that wait for write_posted()
  std::atomic<uint64_t> unsent_{0};  // of outgoing_
};

}  // namespace flow
