#include "engine/serve/http_connection.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace flow {

namespace asio = boost::asio;

namespace {

using Tcp = asio::ip::tcp;

constexpr size_t kBurstsMax = 16;         // before another connection has its turn
constexpr size_t kWriteMark = 64 * 1024;  // a response that has advanced so far has its time again

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

HttpConnection::HttpConnection(HttpShared& shared, const Tcp& protocol, int socket)
    : shared_(shared), socket_(shared.context), reader_(shared.options.rules) {
  if (shared.tls) tls_ = std::make_unique<TlsSession>(*shared.tls);
  socket_.assign(protocol, socket);
  socket_.native_non_blocking(true);
}

// ---- Reading

void HttpConnection::start_read() {
  if (is_reading_ || is_closed_ || has_ended_) return;
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
    if (is_closed_ || !rest_.empty()) return;
    ssize_t got = ::recv(socket_.native_handle(), burst.data(), burst.size(), 0);
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
      return;  // a client may send no more and read on
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
  send_wire(wire);
  if (is_closed_) return;
  if (!is_good) return linger();
  consume(shared_.plain);
  if (!is_closed_ && tls_->has_ended() && !has_ended_) on_end();
}

void HttpConnection::consume(std::string_view bytes) {
  is_consuming_ = true;
  while (!bytes.empty() && !is_closed_ && entry_.phase <= Phase::body) {
    bytes.remove_prefix(reader_.read(bytes));
    switch (reader_.state()) {
      case HttpRequestReader::State::head:
        if (entry_.phase == Phase::idle && reader_.has_begun())
          shared_.table.enter(entry_, Phase::head);
        break;
      case HttpRequestReader::State::body:
        consume_body(!bytes.empty());
        break;
      case HttpRequestReader::State::whole:
        dispatch();
        break;
      case HttpRequestReader::State::failed:
        reject(reader_.error());
        break;
    }
  }
  is_consuming_ = false;
  if (entry_.phase == Phase::waiting || entry_.phase == Phase::writing) rest_.append(bytes);
}

void HttpConnection::consume_body(bool is_more_there) {
  is_head_ = reader_.is_head();
  if (!shared_.table.reserve(entry_, reader_.body_bytes())) return reject_busy();
  if (entry_.phase == Phase::body) return;
  shared_.table.enter(entry_, Phase::body);
  if (!reader_.expects_continue() || is_more_there) return;
  const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
  std::string wire;
  if (tls_ && !tls_->send(go_on, wire)) return close();
  send_wire(tls_ ? wire : go_on);
}

void HttpConnection::dispatch() {
  is_head_ = reader_.is_head();
  HttpRequest request = reader_.take();
  closes_ = request.close;
  if (!shared_.table.reserve(entry_, request.body.size())) return reject_busy();
  shared_.table.enter(entry_, Phase::waiting);
  shared_.handle(std::move(request), shared_from_this());
}

// ---- Answering

void HttpConnection::reject(const HttpError& error) {
  is_head_ = reader_.is_head();
  closes_ = true;
  HttpResponse response = error_response(error.status, error.message);
  if (!error.allow.empty()) response.fields = "Allow: " + error.allow + "\r\n";
  if (error.status == 401) response.fields = "WWW-Authenticate: Bearer\r\n";
  respond(std::move(response));
}

void HttpConnection::reject_busy() {
  closes_ = true;
  HttpResponse response =
      error_response(503, fmt::format("requests and responses of more than {} bytes are open here",
                                      shared_.options.limits.bytes_max));
  response.fields = "Retry-After: 1\r\n";
  respond(std::move(response));
}

void HttpConnection::respond(HttpResponse response) {
  if (is_closed_) return;
  closes_ = closes_ || shared_.is_draining;
  response_ = {response_head(response, closes_), {}};
  if (!is_head_) response_.body = std::move(response.body);
  if (tls_ && !encrypt_response()) return close();
  shared_.table.hold(entry_, response_.head.size() + response_.body.size());
  shared_.table.enter(entry_, Phase::writing);
  write();
}

/// False if there is no session of TLS yet, or it has failed.
bool HttpConnection::encrypt_response() {
  std::string wire = std::exchange(wire_, {});
  bool is_done =
      tls_->is_open() && tls_->send(response_.head, wire) && tls_->send(response_.body, wire);
  response_ = {std::move(wire), {}};
  return is_done;
}

void HttpConnection::write() {
  std::string &head = response_.head, &body = response_.body;
  while (response_.sent < head.size() + body.size()) {
    size_t in_head = std::min(response_.sent, head.size()), in_body = response_.sent - in_head;
    iovec parts[2] = {{head.data() + in_head, head.size() - in_head},
                      {body.data() + in_body, body.size() - in_body}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    ssize_t sent = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && !would_block()) return close();
    if (sent < 0) {
      if (response_.sent - response_.marked >= kWriteMark) {
        response_.marked = response_.sent;
        shared_.table.enter(entry_, Phase::writing);
      }
      socket_.async_wait(Tcp::socket::wait_write,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           if (!error && !self->is_closed_) self->write();
                         });
      return;
    }
    response_.sent += static_cast<size_t>(sent);
  }
  finish_response();
}

void HttpConnection::finish_response() {
  response_ = {};
  shared_.table.hold(entry_, 0);
  if (closes_) return linger();
  shared_.table.enter(entry_, Phase::idle);
  if (is_consuming_) return;
  std::string rest = std::exchange(rest_, {});
  consume(rest);
  if (is_closed_ || !rest_.empty()) return;
  if (has_ended_ && entry_.phase <= Phase::body) return on_end();
  start_read();
}

// ---- The end

void HttpConnection::linger() {
  std::string().swap(rest_);
  shared_.table.enter(entry_, Phase::lingering);
  if (tls_) tls_->close(wire_);
  flush_wire();
  if (is_closed_) return;
  if (has_ended_) return close();
  start_read();
}

void HttpConnection::close() {
  if (is_closed_) return;
  auto kept = shared_from_this();  // the table may have the last reference
  is_closed_ = is_abandoned_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
  shared_.table.remove(entry_);
  shared_.on_close();
}

// ---- What TLS sends besides responses

/// After the response that is being written, or at once.
void HttpConnection::send_wire(const std::string& wire) {
  if (entry_.phase == Phase::writing) {
    response_.head += wire;
  } else if (!wire.empty()) {
    wire_ += wire;
    flush_wire();
  }
}

void HttpConnection::flush_wire() {
  while (!wire_.empty()) {
    ssize_t sent =
        ::send(socket_.native_handle(), wire_.data(), wire_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && !would_block()) return close();
    if (sent < 0) {
      // A client that does not read has the time of the phase.
      socket_.async_wait(Tcp::socket::wait_write,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           if (!error && !self->is_closed_) self->flush_wire();
                         });
      return;
    }
    wire_.erase(0, static_cast<size_t>(sent));
  }
  if (entry_.phase == Phase::lingering) ::shutdown(socket_.native_handle(), SHUT_WR);
}

}  // namespace flow
