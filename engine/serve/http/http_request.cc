// Boost.Beast parses the requests. What it accepts depends on how the bytes were split, and it
// accepts more than one reading of some (RFC 9112 names them), so it gets whole heads and whole
// lines only, and what it let pass is checked.
#include "engine/serve/http/http_request.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <tuple>

#include "engine/serve/http/chunk_lines.hpp"
#include "engine/serve/http/field_text.hpp"
#include "engine/serve/http/http_fields.hpp"
#include "flow/result.hpp"

namespace flow {

namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;

constexpr size_t kEmptyLinesMax = 8;     // before a request
constexpr size_t kBodyStep = 64 * 1024;  // bytes that may be reserved before they arrive
constexpr size_t kBodyDoubledMax = 1024 * 1024;
constexpr size_t kHugeFrom = 8 * 1024 * 1024;

bool is_graphic(char c) { return c > ' ' && c < 127; }

bool lists_method(std::string_view methods, std::string_view method) {
  while (!methods.empty())
    if (next_element(methods) == method) return true;
  return false;
}

HttpError broken_request_line() { return {400, "the request line is not `METHOD /path HTTP/1.1`"}; }

HttpError broken_line_end() { return {400, "lines end with CR LF"}; }

HttpError broken_chunks() { return {400, "the chunks of the body are broken"}; }

/// The allocator returns such memory to the system at once, so that the next body needs new pages:
/// they cost more than the copy of the bytes.
void use_huge_pages(const char* data, size_t size) {
  constexpr uintptr_t kPage = 4096;
  uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size) / kPage * kPage;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // if it supports them
}

/// The announced length alone allocates little. The capacity doubles, and ends at the length. That
/// of a large body does not double: each time costs a copy, and memory that is not written to yet
/// costs nothing.
void reserve(std::string& body, size_t needed, uint64_t length) {
  if (needed <= body.capacity()) return;
  size_t capacity = length;
  while (needed < kBodyDoubledMax && capacity / 2 >= std::max(needed, kBodyStep))
    capacity -= capacity / 2;
  body.reserve(capacity + kBodyPadding);
  if (capacity >= kHugeFrom) use_huge_pages(body.data(), capacity);
}

/// One request. Beast calls its functions on_…; the first error stops it.
class RequestParser final : public http::basic_parser<true> {
 public:
  explicit RequestParser(const HttpRules& rules) : rules_(rules), fields_(rules, request_) {
    header_limit(kHeadBytesMax);
    body_limit(boost::none);  // on_header_impl sets it: other errors of the head come first
  }
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  /// Parses a whole head, a part of the data of the body, or whole lines of the framing. False if
  /// Beast needs more lines.
  bool parse(std::string_view text) {
    text_ = text;
    error_code code;
    size_t taken = put({text.data(), text.size()}, code);
    if (error_) return true;
    if (code == http::error::need_more && is_header_done()) return false;
    if (code || taken != text.size()) error_ = explain(code);
    return true;
  }

  const std::optional<HttpError>& error() const { return error_; }
  const HttpFields& fields() const { return fields_; }
  HttpRequest& request() { return request_; }
  /// Bytes of the body that come before the next line of framing or the end.
  uint64_t data_left() const {
    return fields_.is_chunked() ? chunk_left_ : *fields_.length() - body_bytes_;
  }
  bool is_streamed() const {
    return rules_.streamed_above &&
           (fields_.is_chunked() || fields_.length().value_or(0) > *rules_.streamed_above);
  }

 private:
  using View = boost::beast::string_view;

  void on_request_impl(http::verb, View method, View target, int version,
                       error_code& code) override {
    next_ = target.end();
    is_old_ = version < 11;
    request_.is_old = is_old_;
    request_.method = method;
    if (rules_.keeps_fields) request_.target = target;
    std::string_view path = target.substr(0, target.find('?'));
    request_.path = path;
    if (path.size() < target.size()) request_.query = target.substr(path.size() + 1);
    stop_if(check_target(target.size()), code);
  }

  std::optional<HttpError> check_target(size_t target_bytes) {
    const auto& [method, path] = std::tie(request_.method, request_.path);
    if (!path.starts_with('/')) return broken_request_line();
    if (target_bytes > kTargetBytesMax)
      return HttpError{414, fmt::format("the address is longer than {} bytes", kTargetBytesMax)};
    std::string_view methods = rules_.methods(path);
    if (methods.empty())
      return HttpError{
          404, fmt::format("there is no resource for {} {}", quotable(method), quotable(path))};
    fields_.allow_any(methods == kAnyMethod);
    if (methods == kAnyMethod || lists_method(methods, method)) return {};
    return HttpError{
        405, fmt::format("{} supports {}, not {}", quotable(path), methods, quotable(method)),
        std::string(methods)};
  }

  void on_response_impl(int, View, int, error_code&) override { FLOW_CHECK(false); }

  void on_field_impl(http::field, View name, View value, error_code& code) override {
    if (is_in_body_) return;  // a trailer
    next_ = value.end();
    if (++fields_read_ > kHeadFieldsMax)
      return stop_if(
          HttpError{431, fmt::format("the head has more than {} fields", kHeadFieldsMax)}, code);
    if (rules_.keeps_fields) request_.fields.push_back({name, value});
    stop_if(fields_.read(name, value), code);
  }

  void on_header_impl(error_code& code) override {
    is_in_body_ = true;
    request_.close = is_old_ || !keep_alive();
    stop_if(fields_.check(is_old_), code);
    if (!is_streamed()) body_limit(rules_.body_max);
  }

  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}

  size_t on_body_impl(View bytes, error_code&) override {
    if (!is_streamed())
      reserve(request_.body, request_.body.size() + bytes.size(), *fields_.length());
    request_.body.append(bytes.data(), bytes.size());
    body_bytes_ += bytes.size();
    return bytes.size();
  }

  void on_chunk_header_impl(uint64_t size, View, error_code&) override { chunk_left_ = size; }

  size_t on_chunk_body_impl(uint64_t, View bytes, error_code&) override {
    request_.body.append(bytes.data(), bytes.size());
    chunk_left_ -= bytes.size();
    return bytes.size();
  }

  void on_finish_impl(error_code& code) override {
    stop_if(check_json_bytes(request_, request_.body.size()), code);
  }

  void stop_if(std::optional<HttpError> error, error_code& code) {
    if (!error) return;
    error_ = std::move(error);
    code = http::error::bad_field;
  }

  /// Why Beast has rejected the request.
  HttpError explain(error_code code) {
    if (code == http::error::body_limit) return body_too_large(rules_);
    if (is_header_done()) return broken_chunks();
    bool is_request_line = next_ == nullptr;
    return is_request_line ? explain_request_line(code, next_line())
                           : explain_field(code, next_line());
  }

  static HttpError explain_request_line(error_code code, std::string_view line) {
    size_t target = line.find(' ') + 1, version = line.find(" HTTP/", target);
    bool has_other_version = code == http::error::bad_version &&
                             version == line.find(' ', target) &&
                             line.find(' ', version + 1) == std::string_view::npos;
    return has_other_version ? HttpError{505, "only HTTP/1.1 and HTTP/1.0 are supported"}
                             : broken_request_line();
  }

  HttpError explain_field(error_code code, std::string_view line) {
    bool is_framing = code == http::error::bad_content_length ||
                      code == http::error::multiple_content_length ||
                      code == http::error::bad_transfer_encoding;
    if (is_framing) {
      size_t colon = line.find(':');
      auto error = fields_.explain(line.substr(0, colon), without_blanks(line.substr(colon + 1)));
      if (error) return *error;
    }
    if (code == http::error::bad_value && is_printable(line))
      return {400, fmt::format("the header `{}` is not a list of words", quotable(line))};
    return {400, fmt::format("the header `{}` is not `Name: value`", quotable(line))};
  }

  /// The line of the head after the last one that was parsed, without CR LF.
  std::string_view next_line() const {
    size_t at = 0;
    if (next_ != nullptr) at = text_.find("\r\n", static_cast<size_t>(next_ - text_.data())) + 2;
    return text_.substr(at, text_.find("\r\n", at) - at);
  }

  const HttpRules& rules_;
  HttpRequest request_;
  HttpFields fields_;
  std::optional<HttpError> error_;
  std::string_view text_;
  const char* next_ = nullptr;  // the end of the last target or field of the head
  bool is_old_ = false, is_in_body_ = false;
  size_t fields_read_ = 0;
  uint64_t chunk_left_ = 0;
  uint64_t body_bytes_ = 0;  // of a body with a length, that have arrived
};

}  // namespace

class HttpRequestReader::Impl {
 public:
  explicit Impl(const HttpRules& rules) : rules_(rules) {
    FLOW_CHECK(rules.methods != nullptr);
    parser_.emplace(rules);
  }

  size_t read(std::string_view bytes) {
    size_t at = 0;
    if (state_ == State::head && kept_.empty()) at = skip_empty_lines(bytes);
    if (state_ == State::head && at < bytes.size()) {
      at += read_head(bytes.substr(at));
      if (is_streamed()) return at;
    }
    while (state_ == State::body && at < bytes.size())
      at += parser_->data_left() > 0 ? read_data(bytes.substr(at)) : read_line(bytes.substr(at));
    return at;
  }

  void end() {
    constexpr int kClientLeft = 499;
    if (state_ == State::body) fail({kClientLeft, "the request ends within its body"});
    if (state_ == State::head && has_begun()) fail({400, "the request ends within its head"});
  }

  State state() const { return state_; }
  bool has_begun() const { return state_ != State::head || !kept_.empty(); }
  bool is_head() const { return is_head_; }

  bool expects_continue() const {
    return state_ == State::body && parser_->fields().expects_continue();
  }

  uint64_t body_bytes() {
    if (state_ != State::body) return 0;
    return parser_->fields().length().value_or(parser_->request().body.size());
  }

  uint64_t body_arrived() { return state_ == State::body ? parser_->request().body.size() : 0; }

  uint64_t body_capacity() {
    if (state_ != State::body) return 0;
    const std::string& body = parser_->request().body;
    return std::min(body.capacity(), std::max(2 * body.size(), kBodyStep));
  }

  bool is_streamed() const { return state_ == State::body && parser_->is_streamed(); }

  HttpRequest take_head() {
    FLOW_CHECK(is_streamed() && parser_->request().body.empty());
    return parser_->request();
  }

  std::string take_body() {
    FLOW_CHECK(state_ == State::body || state_ == State::whole);
    return std::exchange(parser_->request().body, {});
  }

  std::optional<uint64_t> body_length() const {
    if (state_ != State::body) return {};
    return parser_->fields().length();
  }

  const HttpError& error() const {
    FLOW_CHECK(state_ == State::failed);
    return error_;
  }

  const HttpRequest& head() {
    FLOW_CHECK(state_ == State::body);
    return parser_->request();
  }

  HttpRequest known() {
    if (parser_ && state_ == State::body) return begin_of(parser_->request());
    return failed_ ? *failed_ : HttpRequest();
  }

  HttpRequest take() {
    FLOW_CHECK(state_ == State::whole);
    HttpRequest request = std::move(parser_->request());
    parser_.emplace(rules_);
    state_ = State::head;
    kept_.clear();
    kept_.shrink_to_fit();  // an idle connection needs no memory
    line_ = empty_lines_ = 0;
    lines_ = {};
    is_head_ = false;
    return request;
  }

 private:
  /// A client may send an extra empty line after the previous request (RFC 9112, section 2.2).
  size_t skip_empty_lines(std::string_view bytes) {
    size_t at = 0;
    for (; at < bytes.size() && empty_lines_ <= kEmptyLinesMax; at++) {
      if (bytes[at] != (line_ == 0 ? '\r' : '\n')) break;
      line_ = 1 - line_;
      if (line_ == 0) empty_lines_++;
    }
    if (empty_lines_ > kEmptyLinesMax)
      fail({400, fmt::format("more than {} empty lines come before the request", kEmptyLinesMax)});
    else if (at < bytes.size() && line_ == 1)
      fail(broken_line_end());
    return at;
  }

  /// Gives Beast the head once it is whole. Usually `bytes` have all of it, and none is copied.
  size_t read_head(std::string_view bytes) {
    HeadPart part = find_head(bytes);
    std::string_view text = bytes.substr(0, part.size);
    if (!part.is_whole || !kept_.empty()) text = kept_.append(text);
    is_head_ = text.starts_with("HEAD ");
    if (part.is_whole) {
      parser_->parse(text);
      part.error = parser_->error();
      state_ = parser_->is_done() ? State::whole : State::body;
      kept_.clear();
    }
    if (part.error) fail(std::move(*part.error));
    return part.size;
  }

  /// How many of the bytes that arrived belong to the head. If it is whole there is no error.
  struct HeadPart {
    size_t size = 0;
    bool is_whole = false;
    std::optional<HttpError> error = {};
  };

  /// Checks that lines end with CR LF and are not folded.
  HeadPart find_head(std::string_view bytes) {
    bytes = bytes.substr(0, kHeadBytesMax - kept_.size());
    // Checked before the line is whole: a client that speaks TLS sends no line, and waits.
    if (kept_.empty() && !is_graphic(bytes.front())) return {.error = broken_request_line()};
    size_t end = 0;
    while (end < bytes.size()) {
      if (line_ == 0 && is_blank(bytes[end])) return {.size = end, .error = folded()};
      size_t newline = bytes.find('\n', end);
      bool has_newline = newline != std::string_view::npos;
      size_t line_end = has_newline ? newline + 1 : bytes.size();
      line_ += line_end - end;
      end = line_end;
      if (!has_newline) break;
      if (!follows_cr(bytes, newline)) return {.size = end, .error = broken_line_end()};
      if (std::exchange(line_, 0) == 2) return {.size = end, .is_whole = true};
    }
    if (kept_.size() + end < kHeadBytesMax) return {.size = end};
    return {
        .size = end,
        .error = HttpError{431, fmt::format("the head is larger than {} bytes", kHeadBytesMax)}};
  }

  /// Whether CR is before this place, which may be at the begin of `bytes`.
  bool follows_cr(std::string_view bytes, size_t at) const {
    return at > 0 ? bytes[at - 1] == '\r' : kept_.ends_with('\r');
  }

  size_t read_data(std::string_view bytes) {
    std::string_view data = bytes.substr(0, parser_->data_left());
    parser_->parse(data);
    lines_.end_data();
    end_part();
    return data.size();
  }

  size_t read_line(std::string_view bytes) {
    size_t taken = lines_.read(bytes);
    if (lines_.state() == ChunkLines::State::broken)
      fail(broken_chunks());
    else if (lines_.state() == ChunkLines::State::complete && parser_->parse(lines_.text()))
      end_lines();
    else if (lines_.state() == ChunkLines::State::complete && !lines_.may_continue())
      fail(broken_chunks());
    return taken;
  }

  void end_lines() {
    if (!lines_.clear() && !parser_->is_done())
      fail({400, fmt::format("the heads of the chunks have more than {} bytes of extensions",
                             ChunkLines::kExtensionsMax)});
    else
      end_part();
  }

  void end_part() {
    if (parser_->error())
      fail(*parser_->error());
    else if (parser_->is_done())
      state_ = State::whole;
  }

  void fail(HttpError error) {
    state_ = State::failed;
    error_ = std::move(error);
    failed_ = std::make_unique<HttpRequest>(begin_of(parser_->request()));
    parser_.reset();
    kept_.clear();
    kept_.shrink_to_fit();
  }

  static HttpRequest begin_of(const HttpRequest& request) {
    HttpRequest begin;
    begin.method = request.method;
    begin.path = request.path;
    begin.traceparent = request.traceparent;
    return begin;
  }

  static HttpError folded() {
    return {400, "a header is not in one line: the next line begins with a space"};
  }

  const HttpRules& rules_;
  State state_ = State::head;
  HttpError error_;
  std::optional<RequestParser> parser_;
  std::unique_ptr<HttpRequest> failed_;  // what is known of a request that failed
  std::string kept_;                     // the begin of the head
  size_t line_ = 0;                      // bytes of the current line
  size_t empty_lines_ = 0;               // before the request
  ChunkLines lines_;
  bool is_head_ = false;
};

HttpRequestReader::HttpRequestReader(const HttpRules& rules)
    : impl_(std::make_unique<Impl>(rules)) {}
HttpRequestReader::~HttpRequestReader() = default;
HttpRequestReader::HttpRequestReader(HttpRequestReader&&) noexcept = default;
HttpRequestReader& HttpRequestReader::operator=(HttpRequestReader&&) noexcept = default;

size_t HttpRequestReader::read(std::string_view bytes) { return impl_->read(bytes); }
void HttpRequestReader::end() { impl_->end(); }
HttpRequestReader::State HttpRequestReader::state() const { return impl_->state(); }
bool HttpRequestReader::has_begun() const { return impl_->has_begun(); }
bool HttpRequestReader::expects_continue() const { return impl_->expects_continue(); }
uint64_t HttpRequestReader::body_bytes() const { return impl_->body_bytes(); }
uint64_t HttpRequestReader::body_arrived() const { return impl_->body_arrived(); }
uint64_t HttpRequestReader::body_capacity() const { return impl_->body_capacity(); }
bool HttpRequestReader::is_streamed() const { return impl_->is_streamed(); }
HttpRequest HttpRequestReader::take_head() { return impl_->take_head(); }
std::string HttpRequestReader::take_body() { return impl_->take_body(); }
std::optional<uint64_t> HttpRequestReader::body_length() const { return impl_->body_length(); }
const HttpError& HttpRequestReader::error() const { return impl_->error(); }
bool HttpRequestReader::is_head() const { return impl_->is_head(); }
HttpRequest HttpRequestReader::known() const { return impl_->known(); }
const HttpRequest& HttpRequestReader::head() const { return impl_->head(); }
HttpRequest HttpRequestReader::take() { return impl_->take(); }

}  // namespace flow
