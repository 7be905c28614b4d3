#include "engine/serve/http/http_connection.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "engine/serve/http/trace_context.hpp"
#include "flow/result.hpp"

namespace flow {

namespace asio = boost::asio;

namespace {

using Tcp = asio::ip::tcp;

// Before another connection has its turn.
constexpr size_t kBurstsMax = 16;
constexpr int kRequestsMax = 32;
// Read at a time, unless a body arrives: more could only be later requests, which wait.
constexpr size_t kPipelinedBytes = 16 * 1024;
// That a client must read of a response, and should send of a body.
constexpr uint64_t kBytesPerSecondMin = 64 * 1024;
// Of a body that is handed on while it arrives: read at a time.
constexpr size_t kUploadStep = 64 * 1024;

}  // namespace

HttpConnection::HttpConnection(HttpShared& shared, const Tcp& protocol, int socket)
    : shared_(shared), socket_(shared.context), reader_(shared.options.rules) {
  if (shared.tls) tls_ = std::make_unique<TlsSession>(*shared.tls);
  socket_.assign(protocol, socket);
  boost::system::error_code ignored;  // accept4() has set it; Asio only takes note
  socket_.native_non_blocking(true, ignored);
}

// ---- Reading

void HttpConnection::start_read() {
  if (is_reading_ || is_closed_ || has_ended_ || is_upload_full()) return;
  is_reading_ = true;
  socket_.async_read_some(
      asio::buffer(in_),
      [self = shared_from_this()](const boost::system::error_code& error, size_t size) {
        self->is_reading_ = false;
        if (!self->is_closed_) self->on_read(error, size);
      });
}

void HttpConnection::on_read(const boost::system::error_code& error, size_t size) {
  if (error == asio::error::eof) return on_end();
  if (error) return close();
  receive({in_.data(), size});
  if (size == in_.size()) read_more();
  // A client that waits is watched, so that its request is dropped when it leaves.
  if (rest_.empty()) start_read();
}

/// More than one small request: continues with the large buffer.
void HttpConnection::read_more() {
  std::vector<char>& burst = shared_.burst;
  for (size_t round = 0; round < kBurstsMax; round++) {
    if (is_closed_ || !rest_.empty() || is_upload_full()) return;
    size_t size = entry_.phase == Phase::body ? burst.size()
                  : is_uploading_             ? kUploadStep
                                              : kPipelinedBytes;
    ssize_t got = ::recv(socket_.native_handle(), burst.data(), size, 0);
    if (got == 0) return on_end();
    if (got < 0) return;  // start_read() finds out what is wrong
    receive({burst.data(), static_cast<size_t>(got)});
  }
}

void HttpConnection::on_end() {
  has_ended_ = true;
  if (tls_ && !tls_->is_open()) return close();
  switch (entry_.phase) {
    case Phase::idle:
    case Phase::lingering:
      return close();
    case Phase::head:
    case Phase::body:
      reader_.end();
      return reject(reader_.error());
    case Phase::waiting:
    case Phase::writing:
      if (!is_uploading_) return;  // a client may send no more and read on
      reader_.end();
      return fail_upload(reader_.error());
  }
}

void HttpConnection::receive(std::string_view bytes) {
  if (entry_.phase == Phase::lingering) return;
  if (tls_) return decrypt(bytes);
  consume(bytes);
}

void HttpConnection::decrypt(std::string_view bytes) {
  std::string wire;
  shared_.plain.clear();
  bool is_good = tls_->receive(bytes, shared_.plain, wire);
  if (!tls_->is_open() && entry_.phase == Phase::idle) {
    shared_.table.enter(entry_, Phase::head);  // its limit of time also holds for a handshake
  } else if (tls_->is_open() && entry_.phase == Phase::head && !reader_.has_begun()) {
    shared_.table.enter(entry_, Phase::idle);
  }
  outgoing_.push(std::move(wire));
  flush();
  if (is_closed_) return;
  if (!is_good) return linger();
  consume(shared_.plain);
  if (!is_closed_ && tls_->has_ended() && !has_ended_) on_end();
}

void HttpConnection::consume(std::string_view bytes) {
  is_consuming_ = true;
  int requests = 0;
  auto is_taking = [&] { return is_uploading_ || entry_.phase <= Phase::body; };
  while (!bytes.empty() && !is_closed_ && is_taking() && requests < kRequestsMax) {
    bytes.remove_prefix(reader_.read(bytes));
    if (reader_.state() == HttpRequestReader::State::whole) requests++;
    on_parsed(!bytes.empty());
  }
  is_consuming_ = false;
  keep_rest(bytes);
}

/// Acts on the state of the reader. `is_more_there`: it has not read all that has arrived.
void HttpConnection::on_parsed(bool is_more_there) {
  switch (reader_.state()) {
    case HttpRequestReader::State::head:
      if (entry_.phase == Phase::idle && reader_.has_begun())
        shared_.table.enter(entry_, Phase::head);
      return;
    case HttpRequestReader::State::body:
      if (is_uploading_) return continue_upload();
      return reader_.is_streamed() ? begin_upload(is_more_there) : consume_body(is_more_there);
    case HttpRequestReader::State::whole:
      is_head_ = reader_.is_head();
      return is_uploading_ ? end_upload() : dispatch_whole();
    case HttpRequestReader::State::failed:
      return is_uploading_ ? fail_upload(reader_.error()) : reject(reader_.error());
  }
}

/// Keeps the bytes of later requests until this one is answered, or until other connections have
/// had their turn.
void HttpConnection::keep_rest(std::string_view bytes) {
  if (is_closed_ || bytes.empty() || entry_.phase == Phase::lingering) return;
  rest_.append(bytes);
  if (!reserve(entry_.bytes + rest_.size())) return close();
  if (entry_.phase <= Phase::body)
    asio::post(shared_.context, [self = shared_from_this()] { self->consume_rest(); });
}

/// Continues with the requests that have arrived during the last one.
void HttpConnection::consume_rest() {
  if (is_closed_ || entry_.phase > Phase::body) return;
  std::string rest = std::exchange(rest_, {});
  hold(0);
  consume(rest);
  if (is_closed_ || !rest_.empty()) return;
  if (has_ended_ && entry_.phase <= Phase::body) return on_end();
  start_read();
}

void HttpConnection::consume_body(bool is_more_there) {
  is_head_ = reader_.is_head();
  // Only what has arrived is reserved, so that announcements alone do not take the place of others.
  if (!fits(reader_.body_bytes()) || !reserve(reader_.body_capacity())) return reject_busy();
  const bool is_new = entry_.phase != Phase::body;
  if (is_new || reader_.body_arrived() >= body_seen_ + kBytesPerSecondMin) {
    body_seen_ = reader_.body_arrived();
    body_seen_at_ = ConnectionTable::Clock::now();
  }
  if (!is_new) return;
  shared_.table.enter(entry_, Phase::body);
  if (reader_.expects_continue() && !is_more_there) ask_for_body();
}

/// The client waits for this before it sends the body, or for the error that makes it needless.
void HttpConnection::ask_for_body() {
  const HttpRules& rules = shared_.options.rules;
  std::optional<HttpError> refusal;
  if (rules.refusal) refusal = rules.refusal(reader_.head());
  if (refusal) return reject(*refusal);
  send("HTTP/1.1 100 Continue\r\n\r\n", {});
}

void HttpConnection::dispatch_whole() {
  HttpRequest request = reader_.take();
  uint64_t size = request.body.size();
  dispatch(std::move(request), size);
}

/// `bytes`: how much memory the body takes, as far as it has arrived or may arrive before it is
/// read.
void HttpConnection::dispatch(HttpRequest request, uint64_t bytes) {
  closes_ = request.close;
  is_old_ = request.is_old;
  if (shared_.options.rules.keeps_fields) {
    request.client_address = client_address();
    request.is_encrypted = tls_ != nullptr;
  }
  record(request);
  request.record = record_;
  if (!reserve(bytes)) return reject_busy();
  held_ = request.body.size();
  shared_.table.enter(entry_, Phase::waiting);
  shared_.handle(std::move(request), shared_from_this());
}

// ---- A body that is handed on while it arrives

void HttpConnection::begin_upload(bool is_more_there) {
  is_head_ = reader_.is_head();
  awaits_continue_ = reader_.expects_continue() && !is_more_there;
  upload_ = std::make_shared<HttpUpload>(reader_.body_length());
  upload_at_ = ConnectionTable::Clock::now();
  is_uploading_ = true;
  std::weak_ptr<HttpConnection> weak = weak_from_this();
  upload_->set_events({.on_wanted =
                           [weak] {
                             auto self = weak.lock();
                             if (self == nullptr || !self->awaits_continue_) return;
                             self->awaits_continue_ = false;
                             self->upload_at_ = ConnectionTable::Clock::now();
                             self->send("HTTP/1.1 100 Continue\r\n\r\n", {});
                           },
                       .on_taken =
                           [weak] {
                             if (auto self = weak.lock()) self->on_upload_taken();
                           }});
  HttpRequest request = reader_.take_head();
  request.upload = upload_;
  dispatch(std::move(request), kUploadStep);
}

void HttpConnection::continue_upload() {
  auto upload = upload_;  // the call may end the response
  std::string part = reader_.take_body();
  if (part.empty()) return;
  awaits_continue_ = false;
  upload_at_ = ConnectionTable::Clock::now();
  if (record_) record_->bytes_in += part.size();
  upload->append(part);
  count_upload();
}

void HttpConnection::end_upload() {
  auto upload = upload_;
  continue_upload();
  reader_.take();
  if (!is_uploading_) return;  // it was answered early
  is_uploading_ = false;
  upload->end();
}

void HttpConnection::fail_upload(HttpError error) {
  auto upload = upload_;
  is_uploading_ = false;
  closes_ = true;
  upload->fail(std::move(error));
}

/// The response has ended. What the client has not sent then is not read as a request.
void HttpConnection::stop_upload() {
  if (std::exchange(is_uploading_, false)) closes_ = true;
  if (upload_) upload_->cancel();
  upload_.reset();
}

void HttpConnection::on_upload_taken() {
  if (is_closed_) return;
  count_upload();
  if (is_consuming_ || !is_uploading_ || is_reading_) return;
  upload_at_ = ConnectionTable::Clock::now();
  start_read();
}

/// What it holds counts, and it holds less while memory is short.
void HttpConnection::count_upload() {
  if (!upload_ || is_closed_) return;
  hold(held_);
  upload_->set_short(!shared_.table.fits(entry_, entry_.bytes + kUploadStep));
  hold(held_);
}

const std::string& HttpConnection::client_address() {
  boost::system::error_code ignored;
  if (client_.empty()) client_ = socket_.remote_endpoint(ignored).address().to_string();
  return client_;
}

// ---- The record of a request

void HttpConnection::record(const HttpRequest& request) {
  const RequestLog* log = shared_.options.requests;
  if (log == nullptr || !log->is_on()) return;
  record_ = std::make_shared<RequestRecord>();
  record_->client = client_address();
  record_->method = request.method;
  record_->path = request.path;
  record_->trace = trace_id_of(request.traceparent);
  record_->arrived = RequestRecord::Clock::now();
  record_->bytes_in = request.body.size();
}

void HttpConnection::end_record(bool is_broken) {
  constexpr int kClientLeft = 499;
  auto record = std::exchange(record_, nullptr);
  if (record == nullptr) return;
  record->is_broken = is_broken && record->status != 0;
  if (record->status == 0) record->status = kClientLeft;
  shared_.options.requests->add(*record);
}

// ---- Answering

void HttpConnection::reject(const HttpError& error) {
  is_head_ = reader_.is_head();
  closes_ = true;
  record(reader_.known());
  if (record_) record_->is_invalid = reader_.state() == HttpRequestReader::State::failed;
  HttpResponse response = error.is_busy ? busy_response(error.status, error.message)
                                        : error_response(error.status, error.message);
  if (!error.allow.empty()) response.fields = "Allow: " + error.allow + "\r\n";
  if (error.status == 401) response.fields = "WWW-Authenticate: Bearer\r\n";
  reader_.end();  // what has arrived of the request is not needed
  respond(std::move(response));
}

void HttpConnection::reject_busy() {
  closes_ = true;
  if (!record_) record(reader_.known());
  reader_.end();
  respond(
      busy_response(503, fmt::format("requests and responses of more than {} bytes are open here",
                                     shared_.options.limits.bytes_max)));
}

void HttpConnection::respond(HttpResponse response) {
  if (is_closed_) return;
  events_.reset();
  stop_upload();
  closes_ = closes_ || shared_.is_draining;
  std::string head = response_head(response, closes_);
  if (is_head_) {
    response.body.clear();
    response.parts.clear();
  }
  if (record_) {
    record_->status = response.status;
    record_->bytes_out = response.body_bytes();
  }
  response_bytes_ = head.size() + response.body_bytes();
  hold(response_bytes_);  // the request's body is gone
  shared_.table.enter(entry_, Phase::writing);
  send(std::move(head), std::move(response.body), std::move(response.parts));
}

// ---- Answering in parts

void HttpConnection::watch(ReplyEvents events) {
  events_ = std::make_shared<const ReplyEvents>(std::move(events));
  if (is_abandoned_) report_left();
}

void HttpConnection::begin(HttpStreamHead head) {
  if (is_closed_) return;
  FLOW_CHECK(entry_.phase == Phase::waiting && !is_streaming_);
  awaits_continue_ = false;
  closes_ = closes_ || shared_.is_draining || is_uploading_;
  if (head.status == 204) head.length.reset();
  if (is_head_ || head.status == 204 || head.status == 304)
    framing_ = Framing::none;
  else if (head.length)
    framing_ = Framing::length;
  else
    framing_ = is_old_ ? Framing::close : Framing::chunks;
  closes_ = closes_ || framing_ == Framing::close;
  length_left_ = head.length.value_or(0);
  is_streaming_ = true;
  is_stalled_ = false;
  if (record_) record_->status = head.status;
  hold(0);  // the request's body is gone
  push(stream_head(head, framing_ == Framing::chunks, closes_));
  // Together with the first part of the body, if that comes now.
  asio::post(shared_.context, [self = shared_from_this()] {
    if (!self->is_closed_) self->flush();
  });
}

bool HttpConnection::write(std::string bytes) {
  if (is_closed_) return false;
  if (bytes.empty() || framing_ == Framing::none) return !is_abandoned_;
  FLOW_CHECK(is_streaming_);
  if (record_) record_->bytes_out += bytes.size();
  if (framing_ == Framing::length) {
    FLOW_CHECK(bytes.size() <= length_left_);
    length_left_ -= bytes.size();
  }
  if (framing_ == Framing::chunks) push(fmt::format("{:x}\r\n", bytes.size()));
  push(std::move(bytes));
  if (framing_ == Framing::chunks) push("\r\n");
  flush();
  if (is_closed_) return false;
  if (is_flushing_) hold(outgoing_.bytes());
  is_stalled_ = outgoing_.bytes() > kUnsentMax;
  return !is_stalled_ && !is_abandoned_;
}

bool HttpConnection::post_write(size_t size) {
  return posted_.fetch_add(size) + size + unsent_ <= kUnsentMax && !is_abandoned_;
}

void HttpConnection::write_posted(std::string bytes, bool must_wait) {
  posted_ -= bytes.size();
  write(std::move(bytes));
  is_stalled_ = is_stalled_ || must_wait;
  wake_writer();
}

void HttpConnection::end() {
  if (is_closed_) return;
  FLOW_CHECK(is_streaming_);
  if (framing_ == Framing::length && length_left_ > 0) return abort();
  is_streaming_ = false;
  events_.reset();
  stop_upload();
  if (framing_ == Framing::chunks) push("0\r\n\r\n");
  if (is_closed_) return;
  if (entry_.phase == Phase::waiting) begin_writing();
  flush();
}

void HttpConnection::abort() {
  if (is_closed_) return;
  events_.reset();
  stop_upload();
  if (!is_streaming_) return close();
  is_streaming_ = false;
  is_aborted_ = closes_ = true;
  if (entry_.phase == Phase::waiting) begin_writing();
  flush();
}

void HttpConnection::push(std::string bytes) {
  if (entry_.phase == Phase::writing) response_bytes_ += bytes.size();
  if (tls_) {
    std::string wire;
    if (!tls_->is_open() || !tls_->send(bytes, wire)) return close();
    bytes = std::move(wire);
  }
  outgoing_.push(std::move(bytes));
  unsent_ = outgoing_.bytes();
}

/// The client does not take what was written of a stream: its time begins.
void HttpConnection::begin_writing() {
  response_bytes_ = outgoing_.bytes();
  shared_.table.enter(entry_, Phase::writing);
}

/// It has taken all: a client that reads is not slow.
void HttpConnection::pause_stream() {
  hold(0);
  if (entry_.phase == Phase::writing) shared_.table.enter(entry_, Phase::waiting);
}

void HttpConnection::wake_writer() {
  if (!is_stalled_ || outgoing_.bytes() > kUnsentMin) return;
  is_stalled_ = false;
  auto events = events_;  // the call may end the response
  if (events && events->on_writable) events->on_writable();
}

void HttpConnection::abandon() {
  if (!is_abandoned_.exchange(true)) report_left();
}

/// Not at once: the owner of the reply may be the caller.
void HttpConnection::report_left() {
  auto events = std::exchange(events_, nullptr);
  if (events && events->on_left) asio::post(shared_.context, [events] { events->on_left(); });
}

// ---- Sending

void HttpConnection::send(std::string head, std::string body, std::vector<Bytes> parts) {
  if (tls_) {
    std::string wire;
    bool is_sent = tls_->is_open() && tls_->send(head, wire) && tls_->send(body, wire);
    for (const Bytes& part : parts) is_sent = is_sent && tls_->send(*part, wire);
    if (!is_sent) return close();
    outgoing_.push(std::move(wire));
  } else {
    outgoing_.push(std::move(head));
    outgoing_.push(std::move(body));
    for (Bytes& part : parts) outgoing_.push(std::move(part));
  }
  flush();
}

void HttpConnection::flush() {
  if (is_flushing_ || is_closed_) return;
  SendQueue::Outcome outcome = outgoing_.send(socket_.native_handle());
  unsent_ = outgoing_.bytes();
  if (unsent_seen_ < unsent_ || unsent_seen_ - unsent_ >= kBytesPerSecondMin) {
    unsent_seen_ = unsent_;
    unsent_seen_at_ = ConnectionTable::Clock::now();
  }
  switch (outcome) {
    case SendQueue::Outcome::failed:
      return close();
    case SendQueue::Outcome::blocked:
      is_flushing_ = true;
      if (is_streaming_) {
        hold(outgoing_.bytes());
        if (entry_.phase == Phase::waiting) begin_writing();
      }
      socket_.async_wait(Tcp::socket::wait_write,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           self->is_flushing_ = false;
                           if (error || self->is_closed_) return;
                           self->flush();
                           self->wake_writer();
                         });
      return;
    case SendQueue::Outcome::all_sent:
      if (is_streaming_) return pause_stream();
      if (entry_.phase == Phase::writing) return finish_response();
      if (entry_.phase == Phase::lingering) ::shutdown(socket_.native_handle(), SHUT_WR);
  }
}

void HttpConnection::finish_response() {
  end_record(is_aborted_);
  hold(0);
  if (is_aborted_ && framing_ == Framing::close) return reset();
  if (closes_) return linger();
  shared_.table.enter(entry_, Phase::idle);
  if (!is_consuming_) consume_rest();
}

/// Counts what the connection holds, `bytes` besides later requests and a body on its way.
void HttpConnection::hold(uint64_t bytes) {
  held_ = bytes;
  shared_.table.hold(entry_, bytes + rest_.size() + (upload_ ? upload_->held() : 0));
}

bool HttpConnection::fits(uint64_t bytes) {
  if (shared_.table.fits(entry_, bytes)) return true;
  shared_.evict_slow(*this, bytes);
  return shared_.table.fits(entry_, bytes);
}

/// Counts what arrives, unless there is no room.
bool HttpConnection::reserve(uint64_t bytes) {
  return fits(bytes) && shared_.table.reserve(entry_, bytes);
}

bool HttpConnection::is_slow_sender(ConnectionTable::Clock::time_point now) const {
  return entry_.phase == Phase::body && body_seen_at_ + std::chrono::seconds(1) <= now;
}

bool HttpConnection::is_slow_reader(ConnectionTable::Clock::time_point now) const {
  return entry_.phase == Phase::writing && unsent_seen_at_ + std::chrono::seconds(1) <= now;
}

bool HttpConnection::is_silent_sender(ConnectionTable::Clock::time_point since) const {
  return is_uploading_ && !awaits_continue_ && !upload_->is_full() && upload_at_ <= since;
}

bool HttpConnection::is_overdue(ConnectionTable::Clock::time_point now) const {
  auto limit = std::chrono::milliseconds(shared_.options.limits.write_ms) +
               std::chrono::seconds(response_bytes_ / kBytesPerSecondMin);
  return entry_.phase == Phase::writing && entry_.since + limit <= now;
}

// ---- The end

void HttpConnection::linger() {
  std::string().swap(rest_);
  hold(0);
  shared_.table.enter(entry_, Phase::lingering);
  if (tls_ && !is_aborted_) {
    std::string wire;
    tls_->close(wire);
    outgoing_.push(std::move(wire));
  }
  flush();
  if (is_closed_) return;
  if (has_ended_ && outgoing_.is_empty()) return close();
  start_read();
}

/// Tells the client that the connection has failed: where its end is that of the body, too.
void HttpConnection::reset() {
  boost::system::error_code ignored;
  socket_.set_option(Tcp::socket::linger(true, 0), ignored);
  close();
}

void HttpConnection::close() {
  if (is_closed_) return;
  auto kept = shared_from_this();  // the table may have the last reference
  is_closed_ = true;
  stop_upload();
  if (entry_.phase == Phase::body) record(reader_.known());  // the client left while it sent it
  end_record(true);
  abandon();
  if (tls_ && !is_aborted_ && tls_->is_open() && outgoing_.is_empty()) {
    std::string wire;
    tls_->close(wire);
    outgoing_.push(std::move(wire));
    outgoing_.send(socket_.native_handle());
  }
  boost::system::error_code ignored;
  socket_.close(ignored);
  shared_.table.remove(entry_);
  shared_.on_close();
}

}  // namespace flow
