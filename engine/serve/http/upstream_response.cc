// Boost.Beast parses heads and the lines between chunks. As in http_request.cc it gets whole ones
// only, which are checked before.
#include "engine/serve/http/upstream_response.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <charconv>

#include "engine/serve/http/chunk_lines.hpp"
#include "engine/serve/http/field_text.hpp"
#include "flow/result.hpp"

namespace flow {

namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;

constexpr std::string_view kHeadBegin = "HTTP/1.";
constexpr std::string_view kHeadEnd = "\r\n\r\n";

bool is_interim(int status) { return status < 200; }

std::optional<uint64_t> read_size(std::string_view digits) {
  uint64_t size = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  return size;
}

/// Whether each line ends with CR LF, has no other control characters, and is not folded.
bool has_plain_lines(std::string_view head) {
  while (!head.empty()) {
    size_t end = head.find("\r\n");
    if (end == std::string_view::npos) return false;
    if (!is_printable(head.substr(0, end)) || is_blank(head[0])) return false;
    head.remove_prefix(end + 2);
  }
  return true;
}

/// Servers may leave out an empty reason, and the space before it, which Beast needs.
bool lacks_reason(std::string_view head) {
  constexpr size_t kStatusEnd = kHeadBegin.size() + sizeof("1 200") - 1;
  return head.find("\r\n") == kStatusEnd;
}

/// One response, interim or final. Beast calls its functions on_….
class ResponseParser final : public http::basic_parser<false> {
 public:
  explicit ResponseParser(bool is_head) {
    header_limit(kUpstreamHeadMax + 1);  // with a space that is added
    body_limit(boost::none);
    skip(is_head);
  }
  ResponseParser(const ResponseParser&) = delete;
  ResponseParser& operator=(const ResponseParser&) = delete;

  enum class Outcome { taken, needs_more, broken };

  /// Parses a whole head, a part of the data of a chunk, or whole lines between chunks.
  Outcome parse(std::string_view text, std::string* body) {
    body_ = body;
    size_t taken = put({text.data(), text.size()}, code_);
    if (code_ == http::error::need_more && is_header_done()) return Outcome::needs_more;
    return code_ || taken != text.size() ? Outcome::broken : Outcome::taken;
  }

  /// Why the response cannot be sent on, or the end of its body is not certain; null if it can.
  const char* error() const {
    if (connection_elements_ > kConnectionElementsMax)
      return "its Connection has too many elements";
    // Beast does not pass on a field that it rejects.
    bool is_length_rejected =
        code_ == http::error::bad_content_length || code_ == http::error::multiple_content_length;
    bool is_coding_rejected = code_ == http::error::bad_transfer_encoding;
    if ((head_.length || is_length_rejected) && (codings_ > 0 || is_coding_rejected))
      return "it has both a Content-Length and a Transfer-Encoding";
    if (is_length_broken_ || is_length_rejected)
      return "its Content-Length is not one number of bytes";
    if (codings_ > 1 || is_coding_rejected || (codings_ == 1 && !is_coding_known_))
      return "its Transfer-Encoding is not just `chunked`";
    if (codings_ == 0) return nullptr;
    return is_old_ ? "HTTP/1.0 does not have Transfer-Encoding" : nullptr;
  }

  UpstreamHead& head() { return head_; }
  const UpstreamHead& head() const { return head_; }
  bool is_chunked() const { return codings_ > 0; }
  uint64_t chunk_left() const { return chunk_left_; }

 private:
  using View = boost::beast::string_view;

  void on_request_impl(http::verb, View, View, int, error_code&) override { FLOW_CHECK(false); }

  void on_response_impl(int status, View, int version, error_code&) override {
    head_.status = status;
    is_old_ = version < 11;
  }

  void on_field_impl(http::field, View name, View value, error_code&) override {
    if (is_in_body_) return;  // a trailer
    head_.fields.push_back({name, value});
    const HttpField& field = head_.fields.back();
    if (equal_names(field.name, "Content-Length")) {
      auto length = read_size(field.value);
      if (!length || (head_.length && head_.length != length)) is_length_broken_ = true;
      head_.length = length;
    } else if (equal_names(field.name, "Transfer-Encoding")) {
      codings_++;
      is_coding_known_ = equal_names(field.value, "chunked");
    } else if (equal_names(field.name, "Connection")) {
      connection_elements_ += count_elements(field.value);
    }
  }

  void on_header_impl(error_code&) override { is_in_body_ = true; }
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(View, error_code&) override { FLOW_CHECK(false); }
  void on_chunk_header_impl(uint64_t size, View, error_code&) override { chunk_left_ = size; }

  size_t on_chunk_body_impl(uint64_t, View bytes, error_code&) override {
    body_->append(bytes.data(), bytes.size());
    chunk_left_ -= bytes.size();
    return bytes.size();
  }

  void on_finish_impl(error_code&) override {}

  UpstreamHead head_;
  error_code code_;
  std::string* body_ = nullptr;
  uint64_t chunk_left_ = 0;
  int codings_ = 0;
  size_t connection_elements_ = 0;
  bool is_coding_known_ = false, is_length_broken_ = false, is_old_ = false, is_in_body_ = false;
};

}  // namespace

class UpstreamResponseReader::Impl {
 public:
  explicit Impl(bool is_head) : is_head_(is_head) { parser_.emplace(is_head); }

  size_t read(std::string_view bytes, std::string& body) {
    size_t at = 0;
    if (!bytes.empty()) has_begun_ = true;
    while (state_ == State::head && at < bytes.size()) at += read_head(bytes.substr(at));
    while (state_ == State::body && at < bytes.size()) at += read_body(bytes.substr(at), body);
    return at;
  }

  void end() {
    if (state_ == State::body && framing_ == Framing::close)
      state_ = State::whole;
    else if (state_ == State::body)
      fail("the connection was closed within the body");
    else if (state_ == State::head)
      fail("the connection was closed before the end of its head");
  }

  State state() const { return state_; }
  bool has_begun() const { return has_begun_; }
  const UpstreamHead& head() const { return parser_->head(); }
  bool keeps_connection() const { return framing_ != Framing::close && parser_->keep_alive(); }
  const std::string& error() const { return error_; }

 private:
  // What marks the end of the body.
  enum class Framing : uint8_t { none, length, chunks, close };

  /// Gives Beast the head once it is whole. Usually `bytes` have all of it, and none is copied.
  size_t read_head(std::string_view bytes) {
    size_t room = kUpstreamHeadMax - head_bytes_;
    std::string_view seen = bytes.substr(0, room);
    size_t known = kept_.size(), taken = seen.size(), end = 0;
    if (known == 0) {
      end = seen.find(kHeadEnd);
    } else {
      kept_.append(seen);
      end = kept_.find(kHeadEnd, known - std::min(known, kHeadEnd.size() - 1));
    }
    bool is_whole = end != std::string_view::npos;
    if (is_whole) taken = end + kHeadEnd.size() - known;
    head_bytes_ += taken;
    std::string_view text = known == 0 ? seen : std::string_view(kept_);
    if (text.substr(0, kHeadBegin.size()) != kHeadBegin.substr(0, text.size()))
      fail("it does not begin with `HTTP/1.`");
    else if (is_whole)
      parse_head(text.substr(0, end + kHeadEnd.size()));
    else if (head_bytes_ == kUpstreamHeadMax)
      fail(fmt::format("its head is larger than {} bytes", kUpstreamHeadMax));
    else if (known == 0)
      kept_ = seen;
    return taken;
  }

  void parse_head(std::string_view text) {
    std::string completed;
    if (lacks_reason(text)) {
      completed = text;
      completed.insert(text.find("\r\n"), " ");
      text = completed;
    }
    bool good = has_plain_lines(text.substr(0, text.size() - 2)) &&
                parser_->parse(text, nullptr) == ResponseParser::Outcome::taken;
    kept_.clear();
    kept_.shrink_to_fit();
    // Beast rejects some lengths and codings; whether this was the reason, the fields tell.
    if (const char* error = parser_->error()) return fail(error);
    int status = parser_->head().status;
    if (!good || status < 100) return fail("its head is not that of an HTTP/1.1 response");
    if (status == 101) return fail("it changes the protocol, which nobody asked for");
    if (is_interim(status)) {
      parser_.emplace(is_head_);
      return;
    }
    begin_body();
  }

  void begin_body() {
    const UpstreamHead& head = parser_->head();
    state_ = State::body;
    length_left_ = head.length.value_or(0);
    if (is_head_ || head.status == 204 || head.status == 304)
      framing_ = Framing::none;
    else if (parser_->is_chunked())
      framing_ = Framing::chunks;
    else
      framing_ = head.length ? Framing::length : Framing::close;
    if (framing_ == Framing::none || (framing_ == Framing::length && length_left_ == 0))
      state_ = State::whole;
  }

  size_t read_body(std::string_view bytes, std::string& body) {
    if (framing_ == Framing::chunks)
      return parser_->chunk_left() > 0 ? read_data(bytes, body) : read_line(bytes);
    if (framing_ == Framing::length) bytes = bytes.substr(0, length_left_);
    body.append(bytes);
    length_left_ -= std::min<uint64_t>(bytes.size(), length_left_);
    if (framing_ == Framing::length && length_left_ == 0) state_ = State::whole;
    return bytes.size();
  }

  size_t read_data(std::string_view bytes, std::string& body) {
    bytes = bytes.substr(0, parser_->chunk_left());
    lines_.end_data();
    if (parser_->parse(bytes, &body) != ResponseParser::Outcome::taken) fail_chunks();
    return bytes.size();
  }

  size_t read_line(std::string_view bytes) {
    size_t taken = lines_.read(bytes);
    if (lines_.state() == ChunkLines::State::broken)
      fail_chunks();
    else if (lines_.state() == ChunkLines::State::complete)
      parse_lines();
    return taken;
  }

  void parse_lines() {
    auto outcome = parser_->parse(lines_.text(), nullptr);
    if (outcome == ResponseParser::Outcome::needs_more && lines_.may_continue()) return;
    if (outcome == ResponseParser::Outcome::needs_more) return fail_chunks();
    if (outcome == ResponseParser::Outcome::broken || !lines_.clear()) return fail_chunks();
    if (parser_->is_done()) state_ = State::whole;
  }

  void fail_chunks() { fail("the chunks of its body are broken"); }

  void fail(std::string error) {
    state_ = State::failed;
    error_ = std::move(error);
    kept_.clear();
  }

  const bool is_head_;
  State state_ = State::head;
  Framing framing_ = Framing::none;
  std::optional<ResponseParser> parser_;
  std::string kept_;  // the begin of the head
  size_t head_bytes_ = 0;
  uint64_t length_left_ = 0;
  ChunkLines lines_;
  bool has_begun_ = false;
  std::string error_;
};

UpstreamResponseReader::UpstreamResponseReader(bool is_head)
    : impl_(std::make_unique<Impl>(is_head)) {}
UpstreamResponseReader::~UpstreamResponseReader() = default;
UpstreamResponseReader::UpstreamResponseReader(UpstreamResponseReader&&) noexcept = default;
UpstreamResponseReader& UpstreamResponseReader::operator=(UpstreamResponseReader&&) noexcept =
    default;

size_t UpstreamResponseReader::read(std::string_view bytes, std::string& body) {
  return impl_->read(bytes, body);
}
void UpstreamResponseReader::end() { impl_->end(); }
UpstreamResponseReader::State UpstreamResponseReader::state() const { return impl_->state(); }
bool UpstreamResponseReader::has_begun() const { return impl_->has_begun(); }
const UpstreamHead& UpstreamResponseReader::head() const { return impl_->head(); }
bool UpstreamResponseReader::keeps_connection() const { return impl_->keeps_connection(); }
const std::string& UpstreamResponseReader::error() const { return impl_->error(); }

}  // namespace flow
