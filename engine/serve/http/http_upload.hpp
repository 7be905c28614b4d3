// The body of a request on its way from the connection of a client to the one that takes it, while
// it arrives. The client sends no faster than it is taken.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/serve/http/http_request.hpp"

namespace flow {

/// Only the thread of the server uses it.
class HttpUpload {
 public:
  /// Bytes that arrive before they are taken; a little more after a read of the connection.
  static constexpr size_t kAheadMax = 256 * 1024;
  /// A body up to this size may stay here after it was taken, so that it can be taken again.
  static constexpr size_t kKeptMax = 1024 * 1024;

  /// `length`: Content-Length; nothing for a chunked body.
  explicit HttpUpload(std::optional<uint64_t> length) : length_(length) {}
  const std::optional<uint64_t>& length() const { return length_; }

  // ---- the connection of the client

  struct Events {
    std::function<void()> on_wanted;  // once: the body is about to be taken
    std::function<void()> on_taken;   // some bytes of it
  };
  void set_events(Events events) { events_ = std::move(events); }
  void append(std::string_view bytes);
  /// All has arrived.
  void end();
  /// The rest does not arrive. The reader answers the request with this error.
  void fail(HttpError error);
  /// Bytes that it has in memory.
  size_t held() const { return held_.size(); }
  /// Memory is short: nothing is kept that was taken, and nothing should be read ahead.
  void set_short(bool is_short);
  /// Whether the connection should not read more at present.
  bool is_full() const { return ahead() >= (is_short_ ? 1 : kAheadMax); }

  // ---- the reader

  /// `on_change` is called after append(), end() and fail().
  void watch(std::function<void()> on_change) { on_change_ = std::move(on_change); }
  /// Whether what is taken stays, up to kKeptMax.
  void set_kept(bool is_kept);
  /// The reader is about to take the body.
  void start();
  /// Whether all of the body that has arrived is still here.
  bool is_repeatable() const { return begin_ == 0 && !is_cancelled_; }
  /// The body is to be taken from its begin again, which needs is_repeatable().
  void rewind();
  /// Up to `size` bytes that come next. Valid until another call.
  std::string_view next(size_t size) const;
  /// Nothing if the upload was cancelled since next().
  void take(size_t size);
  /// Whether all that comes is in next().
  bool has_ended() const { return has_ended_; }
  const std::optional<HttpError>& error() const { return error_; }
  /// Nothing more is taken: the reader is done, or the client has left. The connection of the
  /// client calls it too, so that the reader may find the upload cancelled at any time.
  void cancel();
  bool is_cancelled() const { return is_cancelled_; }

 private:
  size_t ahead() const { return held_.size() - (taken_ - begin_); }
  void drop_taken();
  void report() const;

  const std::optional<uint64_t> length_;
  Events events_;
  std::function<void()> on_change_;
  std::string held_;                // the body from begin_ on; up to kKeptMax or kAheadMax
  uint64_t begin_ = 0, taken_ = 0;  // positions in the body
  std::optional<HttpError> error_;
  bool is_kept_ = true, is_short_ = false;
  bool is_wanted_ = false, has_ended_ = false, is_cancelled_ = false;
};

}  // namespace flow
