#include "engine/serve/http/http_upload.hpp"

#include <utility>

#include "flow/result.hpp"

namespace flow {

namespace {

constexpr size_t kDropStep = 128 * 1024;  // bytes: the others are moved each time

}  // namespace

// ---- The connection of the client

void HttpUpload::append(std::string_view bytes) {
  if (is_cancelled_) return;
  held_.append(bytes);
  if (begin_ + held_.size() > kKeptMax) set_kept(false);
  report();
}

void HttpUpload::end() {
  has_ended_ = true;
  report();
}

void HttpUpload::fail(HttpError error) {
  error_ = std::move(error);
  report();
}

void HttpUpload::set_short(bool is_short) {
  is_short_ = is_short;
  if (is_short) set_kept(false);
}

void HttpUpload::report() const {
  auto on_change = on_change_;  // the call may replace it
  if (on_change) on_change();
}

// ---- The reader

void HttpUpload::set_kept(bool is_kept) {
  is_kept_ = is_kept_ && is_kept;  // what is dropped does not come back
  if (!is_kept_) drop_taken();
}

void HttpUpload::rewind() {
  FLOW_CHECK(is_repeatable());
  taken_ = 0;
}

void HttpUpload::start() {
  if (!std::exchange(is_wanted_, true) && events_.on_wanted) events_.on_wanted();
}

std::string_view HttpUpload::next(size_t size) const {
  return std::string_view(held_).substr(taken_ - begin_, size);
}

void HttpUpload::take(size_t size) {
  if (is_cancelled_) return;
  FLOW_CHECK(size <= ahead());
  taken_ += size;
  if (!is_kept_) drop_taken();
  if (size > 0 && events_.on_taken) events_.on_taken();
}

void HttpUpload::drop_taken() {
  size_t size = taken_ - begin_;
  if (size < held_.size() && size < kDropStep) return;
  held_.erase(0, size);
  begin_ = taken_;
}

void HttpUpload::cancel() {
  is_cancelled_ = true;
  on_change_ = {};
  std::string().swap(held_);
  begin_ = taken_;
}

}  // namespace flow
