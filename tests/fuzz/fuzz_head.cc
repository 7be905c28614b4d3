// Bytes of a socket to a service: a head is rejected with an error or has exactly one framing;
// chunks give the same body however they are split.
#include "engine/serve/http_head.hpp"
#include "flow/result.hpp"

namespace {

constexpr uint64_t kBodyMax = 64;

std::string_view methods_of(std::string_view path) {
  return path.starts_with("/a") ? "POST" : path.starts_with("/b") ? "GET, HEAD" : "";
}

void read(std::string_view text) {
  size_t end = flow::end_of_head(text);
  if (end == 0) return;
  auto verdict = flow::read_head(text.substr(0, end), kBodyMax, methods_of);
  if (auto* error = std::get_if<flow::HttpError>(&verdict)) {
    FLOW_CHECK(error->status >= 400 && error->status < 600 && !error->message.empty());
    FLOW_CHECK((error->status == 405) == !error->allow.empty());
    return;
  }
  const flow::RequestHead& head = std::get<flow::RequestHead>(verdict);
  FLOW_CHECK(head.length <= kBodyMax && !(head.chunked && head.length > 0));
  FLOW_CHECK(head.method == "POST" || (!head.chunked && head.length == 0));
  // It is passed on as one line: no part of it may end that line.
  for (const std::string& part : {head.method, head.target, head.accept_encoding})
    FLOW_CHECK(part.find_first_of("\r\n") == std::string::npos);
  FLOW_CHECK(head.target.find(' ') == std::string::npos);
}

void decode(std::string_view text) {
  using State = flow::ChunkedDecoder::State;
  flow::ChunkedDecoder whole(kBodyMax), cut(kBodyMax);
  std::string in(text), body, piece, slow_body;
  State state = whole.decode(in, body), slow = State::more;
  size_t at = 0;
  while (slow == State::more && at < text.size()) {
    piece += text[at++];
    slow = cut.decode(piece, slow_body);
  }
  FLOW_CHECK(body.size() <= kBodyMax && slow_body.size() <= kBodyMax);
  FLOW_CHECK((state == State::whole) == (slow == State::whole));
  if (state != State::whole) return;
  FLOW_CHECK(body == slow_body);
  FLOW_CHECK(in == piece + std::string(text.substr(at)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  read(text);
  decode(text);
  return 0;
}
