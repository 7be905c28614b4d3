// Bytes of a connection to a service: they give the same requests and the same error however they
// are split, and a request that is printed again, or forwarded, is read as the same request.
#include <algorithm>
#include <optional>
#include <utility>

#include "engine/serve/http/forwarded_fields.hpp"
#include "engine/serve/http/http_request.hpp"
#include "flow/result.hpp"

namespace {

using flow::HttpRequest;
using State = flow::HttpRequestReader::State;

std::string_view methods_of(std::string_view path) {
  return path.starts_with("/a") ? "POST" : path.starts_with("/b") ? "GET, HEAD" : "";
}

const flow::HttpRules kRules{64, methods_of, {"models.example"}};
const flow::HttpRules kProxyRules{.body_max = 64,
                                  .methods = [](std::string_view) { return flow::kAnyMethod; },
                                  .keeps_fields = true};
const flow::HttpRules kUploadRules{.body_max = 64,
                                   .methods = [](std::string_view) { return flow::kAnyMethod; },
                                   .keeps_fields = true,
                                   .streamed_above = 3};

struct Conversation {
  std::vector<HttpRequest> requests;
  State state = State::head;
  flow::HttpError error;
  size_t taken = 0;  // bytes of whole requests

  bool operator==(const Conversation& other) const {
    return requests == other.requests && state == other.state && taken == other.taken &&
           error.status == other.error.status && error.message == other.error.message &&
           error.allow == other.error.allow;
  }
};

void check(const HttpRequest& request) {
  FLOW_CHECK(request.method == (request.path.starts_with("/a") ? "POST" : "GET") ||
             (request.method == "HEAD" && request.path.starts_with("/b")));
  FLOW_CHECK(request.body.size() <= kRules.body_max);
  FLOW_CHECK(request.method == "POST" || request.body.empty());
  FLOW_CHECK(!request.content_encoding.empty() ||
             request.json_bytes.value_or(0) <= request.body.size());
  FLOW_CHECK(request.path.size() + request.query.size() <= flow::kTargetBytesMax);
  const std::string& coding = request.content_encoding;
  FLOW_CHECK(coding.empty() || coding == "gzip" || coding == "deflate");
  // It is logged, and may be forwarded, as one line: no part of it may end that line.
  for (const std::string* part :
       {&request.path, &request.query, &request.accept_encoding, &request.timeout})
    FLOW_CHECK(part->find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
  FLOW_CHECK((request.path + request.query).find_first_of(" \t") == std::string::npos);
}

Conversation read(std::string_view text, size_t part, const flow::HttpRules& rules = kRules) {
  flow::HttpRequestReader reader(rules);
  Conversation all;
  std::optional<HttpRequest> upload;
  for (size_t at = 0; at < text.size();) {
    std::string_view bytes = text.substr(at, part);
    size_t taken = reader.read(bytes);
    FLOW_CHECK(taken <= bytes.size());
    at += taken;
    all.state = reader.state();
    if (all.state == State::failed) {
      all.error = reader.error();
      FLOW_CHECK(all.error.status >= 400 && all.error.status < 600 && !all.error.message.empty());
      FLOW_CHECK((all.error.status == 405) == !all.error.allow.empty());
      break;
    }
    if (upload && (all.state == State::body || all.state == State::whole))
      upload->body += reader.take_body();
    if (!upload && reader.is_streamed()) {
      FLOW_CHECK(text.substr(0, at).ends_with("\r\n\r\n"));
      FLOW_CHECK(!reader.body_length() || *reader.body_length() > *rules.streamed_above);
      upload = reader.take_head();
    } else if (all.state == State::whole) {
      all.requests.push_back(reader.take());
      if (upload) all.requests.back() = *std::exchange(upload, std::nullopt);
      if (&rules == &kRules) check(all.requests.back());
      all.taken = at;
      all.state = reader.state();
      FLOW_CHECK(all.state == State::head && !reader.has_begun());
    } else {
      FLOW_CHECK(taken == bytes.size());
    }
  }
  return all;
}

std::string printed(const HttpRequest& request) {
  std::string text = request.method + " " + request.path;
  if (!request.query.empty()) text += "?" + request.query;
  text += request.is_old ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n";
  text += "Host: localhost\r\n";
  auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += std::string(name) + ": " + value + "\r\n";
  };
  add("Accept-Encoding", request.accept_encoding);
  add("Content-Encoding", request.content_encoding);
  add("X-Request-Timeout", request.timeout);
  if (request.json_bytes)
    add("Inference-Header-Content-Length", std::to_string(*request.json_bytes));
  if (request.close) add("Connection", "close");
  return text + "Content-Length: " + std::to_string(request.body.size()) + "\r\n\r\n" +
         request.body;
}

/// What an upstream reads of a request that is sent on to it.
void check_forwarded(const HttpRequest& request) {
  std::string head = flow::forwarded_head(request);
  if (head.size() > flow::kHeadBytesMax) return;
  Conversation again = read(head + request.body, SIZE_MAX, kProxyRules);
  FLOW_CHECK(again.requests.size() == 1 && again.state == State::head);
  FLOW_CHECK(again.taken == head.size() + request.body.size());
  const HttpRequest& got = again.requests[0];
  FLOW_CHECK(got.method == request.method && got.target == request.target);
  FLOW_CHECK(got.body == request.body && !got.is_old);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  Conversation whole = read(text, std::max<size_t>(size, 1));
  FLOW_CHECK(whole == read(text, 1));
  FLOW_CHECK(whole == read(text, 2 + size % 13));
  for (const HttpRequest& request : whole.requests) {
    Conversation again = read(printed(request), SIZE_MAX);
    FLOW_CHECK(again.requests.size() == 1 && again.requests[0] == request);
  }
  Conversation proxied = read(text, std::max<size_t>(size, 1), kProxyRules);
  FLOW_CHECK(proxied == read(text, 1, kProxyRules));
  for (const HttpRequest& request : proxied.requests) check_forwarded(request);
  // Bodies in parts are those that are read whole, and may be larger.
  Conversation uploads = read(text, std::max<size_t>(size, 1), kUploadRules);
  FLOW_CHECK(uploads == read(text, 1, kUploadRules));
  FLOW_CHECK(uploads.requests.size() >= proxied.requests.size());
  FLOW_CHECK(
      std::equal(proxied.requests.begin(), proxied.requests.end(), uploads.requests.begin()));
  return 0;
}
