#include "engine/relay/sealed_pipe.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <utility>

#include "engine/base/address.hpp"
#include "engine/base/clock.hpp"

namespace flow {

namespace asio = boost::asio;

namespace {

constexpr int64_t kTicksPerHeartbeat = 5;
constexpr int kTicksAfterEnd = kTicksPerHeartbeat;  // for what was not written yet

std::string address_of(const asio::ip::tcp::socket& socket) {
  boost::system::error_code error;
  auto end = socket.remote_endpoint(error);
  if (error) return "a peer that has left";
  return address_text({end.address().to_string(), end.port()});
}

}  // namespace

SealedPipe::SealedPipe(EventLoop& loop, asio::ip::tcp::socket socket,
                       const cluster::SessionOptions& options)
    : socket_(std::move(socket)),
      local_(loop.context()),
      ticks_(loop.context()),
      session_(options, address_of(socket_), monotonic_us()),
      tick_(std::chrono::milliseconds(
          std::max<int64_t>(1, options.heartbeat_ms / kTicksPerHeartbeat))) {}

void SealedPipe::start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  boost::system::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  flush();
  read_socket();
  wait_tick();
}

void SealedPipe::attach(int local) {
  int family = AF_UNIX;
  socklen_t size = sizeof family;
  ::getsockopt(local, SOL_SOCKET, SO_DOMAIN, &family, &size);
  boost::system::error_code failed;
  local_.assign(asio::generic::stream_protocol(family, 0), local, failed);
  if (failed) ::close(local);
  if (failed) session_.end("there is no connection that it could carry");
  update();
}

void SealedPipe::tell(std::string_view note) {
  if (!session_.is_open()) return;
  session_.tell(note);
  flush();
}

void SealedPipe::close(std::string_view why) {
  if (std::exchange(has_ended_, true)) return;
  callbacks_ = {};
  session_.end(why);
  close_local();
  flush();
}

void SealedPipe::wait_tick() {
  ticks_.expires_after(tick_);
  ticks_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (error) return;
    self->session_.tick(monotonic_us());
    if (self->has_ended_ && ++self->ticks_since_end_ > kTicksAfterEnd) {
      self->close_local();
      return self->close_socket();
    }
    self->update();
    self->wait_tick();
  });
}

void SealedPipe::read_socket() {
  socket_.async_read_some(asio::buffer(from_socket_), [self = shared_from_this()](
                                                          const boost::system::error_code& error,
                                                          size_t size) {
    if (self->has_ended_) return;
    if (error) {
      self->session_.cut(error == asio::error::eof ? "the other side closed it" : error.message());
    } else {
      self->session_.receive({self->from_socket_.data(), size}, monotonic_us());
    }
    self->update();
    if (!self->has_ended_) self->read_socket();
  });
}

void SealedPipe::read_local() {
  size_t size = std::min(session_.window(), from_local_.size());
  if (is_reading_local_ || size == 0 || !local_.is_open()) return;
  is_reading_local_ = true;
  local_.async_read_some(
      asio::buffer(from_local_, size),
      [self = shared_from_this()](const boost::system::error_code& error, size_t got) {
        self->is_reading_local_ = false;
        if (self->has_ended_) return;
        if (error) {
          self->session_.end("the connection that it carries has ended");
        } else if (self->session_.is_open()) {
          self->session_.write({self->from_local_.data(), got});
        }
        self->update();
      });
}

void SealedPipe::write_local() {
  if (is_writing_local_ || !local_.is_open()) return;
  size_t size = session_.read(to_local_.data(), to_local_.size());
  if (size == 0) {
    if (has_ended_) close_local();
    return;
  }
  is_writing_local_ = true;
  asio::async_write(local_, asio::buffer(to_local_, size),
                    [self = shared_from_this()](const boost::system::error_code& error, size_t) {
                      self->is_writing_local_ = false;
                      if (error) {
                        self->session_.end("the connection that it carries has ended");
                        self->close_local();
                      }
                      self->update();
                    });
}

void SealedPipe::flush() {
  if (is_writing_ || !socket_.is_open()) return;
  out_ = session_.take_output();
  if (out_.empty()) {
    if (session_.has_ended()) close_socket();
    return;
  }
  is_writing_ = true;
  asio::async_write(socket_, asio::buffer(out_),
                    [self = shared_from_this()](const boost::system::error_code& error, size_t) {
                      self->is_writing_ = false;
                      if (error) {
                        self->session_.cut(error.message());
                        self->close_socket();
                      }
                      self->update();
                    });
}

/// What follows from a change of the session.
void SealedPipe::update() {
  auto self = shared_from_this();  // a callback may release this object
  if (session_.is_open() && !std::exchange(was_opened_, true)) {
    auto opened = std::exchange(callbacks_.opened, nullptr);
    if (opened) opened();
  }
  for (const std::string& note : session_.take_notes()) {
    auto noted = callbacks_.noted;  // it may call close()
    if (noted) noted(note);
  }
  if (session_.has_ended() && !has_ended_) end();
  read_local();
  write_local();
  flush();
}

void SealedPipe::end() {
  has_ended_ = true;
  auto ended = std::exchange(callbacks_, {}).ended;
  if (ended) ended(session_.how_ended().kind, session_.how_ended().why.message);
}

void SealedPipe::close_socket() {
  boost::system::error_code ignored;
  if (socket_.is_open()) socket_.close(ignored);
  if (!local_.is_open()) ticks_.cancel();
}

void SealedPipe::close_local() {
  boost::system::error_code ignored;
  if (local_.is_open()) local_.close(ignored);
  if (!socket_.is_open()) ticks_.cancel();
}

}  // namespace flow
