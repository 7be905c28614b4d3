#include "engine/serve/http/http_response.hpp"

#include <fmt/format.h>

#include <iterator>

#include "engine/value/utf8.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 303:
      return "See Other";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 402:
      return "Payment Required";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 406:
      return "Not Acceptable";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 411:
      return "Length Required";
    case 412:
      return "Precondition Failed";
    case 413:
      return "Payload Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 416:
      return "Range Not Satisfiable";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:  // of nginx, in no RFC
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

}  // namespace

HttpResponse error_response(int status, std::string_view message) {
  return {.status = status,
          .body = "{\"error\":" + to_json(Value(to_utf8(std::string(message)))) + "}"};
}

HttpResponse busy_response(int status, std::string_view message) {
  HttpResponse response = error_response(status, message);
  response.fields = "Retry-After: 1\r\n";
  return response;
}

uint64_t HttpResponse::body_bytes() const {
  uint64_t bytes = body.size();
  for (const Bytes& part : parts) bytes += part->size();
  return bytes;
}

std::string response_head(const HttpResponse& response, bool closes) {
  std::string head;
  fmt::format_to(std::back_inserter(head),
                 "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}{}\r\n",
                 response.status, reason_of(response.status), response.content_type,
                 response.body_bytes(), response.fields, closes ? "Connection: close\r\n" : "");
  return head;
}

std::string stream_head(const HttpStreamHead& stream, bool is_chunked, bool closes) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", stream.status, reason_of(stream.status));
  auto out = std::back_inserter(head);
  if (!stream.content_type.empty())
    fmt::format_to(out, "Content-Type: {}\r\n", stream.content_type);
  if (stream.length) fmt::format_to(out, "Content-Length: {}\r\n", *stream.length);
  if (is_chunked) head += "Transfer-Encoding: chunked\r\n";
  fmt::format_to(out, "{}{}\r\n", stream.fields, closes ? "Connection: close\r\n" : "");
  return head;
}

}  // namespace flow
