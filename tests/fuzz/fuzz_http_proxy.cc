// Responses of an upstream: they are read in the same way however their bytes are split, and what
// is forwarded of one is read as the same response. The first byte says whether the request was
// HEAD, and whether the connection ends after the bytes.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "engine/serve/http/forwarded_fields.hpp"
#include "engine/serve/http/http_response.hpp"
#include "engine/serve/http/upstream_response.hpp"
#include "flow/result.hpp"

namespace {

using State = flow::UpstreamResponseReader::State;

struct Answer {
  State state = State::head;
  int status = 0;
  std::optional<uint64_t> length;
  std::string fields, body, error;
  size_t taken = 0;
  bool keeps_connection = false;

  bool operator==(const Answer&) const = default;
};

Answer read(std::string_view text, bool is_head, bool ends, size_t part) {
  flow::UpstreamResponseReader reader(is_head);
  Answer answer;
  auto is_open = [&] { return reader.state() == State::head || reader.state() == State::body; };
  while (answer.taken < text.size() && is_open()) {
    std::string_view bytes = text.substr(answer.taken, part);
    size_t taken = reader.read(bytes, answer.body);
    FLOW_CHECK(taken == bytes.size() || (!is_open() && taken < bytes.size()));
    FLOW_CHECK(reader.has_begun());
    answer.taken += taken;
  }
  if (ends && is_open()) reader.end();
  answer.state = reader.state();
  FLOW_CHECK(!ends || !is_open());
  if (answer.state == State::failed) {
    answer.error = reader.error();
    answer.taken = 0;  // some errors are seen before the end of their line
  }
  FLOW_CHECK((answer.state == State::failed) == !answer.error.empty());
  if (answer.state == State::body || answer.state == State::whole) {
    answer.status = reader.head().status;
    answer.length = reader.head().length;
    answer.fields = flow::forwarded_fields(reader.head().fields);
  }
  if (answer.state == State::whole) answer.keeps_connection = reader.keeps_connection();
  return answer;
}

bool has_body(const Answer& answer, bool is_head) {
  return !is_head && answer.status != 204 && answer.status != 304;
}

/// What a client gets, read again.
void check_forwarded(const Answer& answer, bool is_head) {
  bool is_chunked = has_body(answer, is_head) && !answer.length;
  flow::HttpStreamHead head{
      .status = answer.status, .fields = answer.fields, .length = answer.length};
  std::string text = flow::stream_head(head, is_chunked, false);
  FLOW_CHECK(text.size() < 2 * flow::kUpstreamHeadMax);
  if (text.size() > flow::kUpstreamHeadMax) return;
  size_t head_end = text.find("\r\n\r\n") + 4;
  FLOW_CHECK(head_end == text.size());  // no field ends the head
  if (is_chunked && !answer.body.empty()) {
    char size[32];
    std::snprintf(size, sizeof size, "%zx\r\n", answer.body.size());
    text += size + answer.body + "\r\n";
  }
  if (is_chunked) text += "0\r\n\r\n";
  if (!is_chunked) text += answer.body;
  Answer again = read(text, is_head, false, SIZE_MAX);
  FLOW_CHECK(again.state == State::whole && again.keeps_connection);
  FLOW_CHECK(again.status == answer.status && again.length == answer.length);
  FLOW_CHECK(again.fields == answer.fields && again.body == answer.body);
  FLOW_CHECK(again.taken == text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  bool is_head = (data[0] & 1) != 0, ends = (data[0] & 2) != 0;
  Answer whole = read(text, is_head, ends, std::max<size_t>(text.size(), 1));
  FLOW_CHECK(whole == read(text, is_head, ends, 1));
  FLOW_CHECK(whole == read(text, is_head, ends, 2 + size % 13));
  if (whole.state == State::whole) {
    FLOW_CHECK(whole.status >= 200 && whole.status < 1000);
    FLOW_CHECK(has_body(whole, is_head) || whole.body.empty());
    FLOW_CHECK(!has_body(whole, is_head) || !whole.length || *whole.length == whole.body.size());
    check_forwarded(whole, is_head);
  }
  return 0;
}
