#include "engine/fetch/http_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/base/size_units.hpp"
#include "engine/crypto/base64.hpp"
#include "engine/fetch/aws_config.hpp"
#include "engine/fetch/curl_library.hpp"
#include "engine/fetch/text.hpp"
#include "flow/flow.hpp"

namespace flow::fetch {

namespace {

constexpr size_t kHeadersMax = 256 << 10;  // bytes of one answer
constexpr int kCheckEveryMs = 100;         // curl_easy_perform() asks check_running once a second

/// Only after a client was made.
const CurlLibrary& curl_calls() { return *curl_library(); }

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool may_be_gone_later(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_FAILED_INIT:
    case CURLE_OUT_OF_MEMORY:
      return false;
    default:
      return true;
  }
}

/// The same as curl_easy_perform(), but for how often check_running is asked.
CURLcode perform(CURLM* transfers, CURL* curl) {
  const CurlLibrary& calls = curl_calls();
  CURLMcode fault = calls.curl_multi_add_handle(transfers, curl);
  for (int running = 1; fault == CURLM_OK;) {
    fault = calls.curl_multi_perform(transfers, &running);
    if (running == 0) break;
    if (fault == CURLM_OK)
      fault = calls.curl_multi_poll(transfers, nullptr, 0, kCheckEveryMs, nullptr);
  }
  int left = 0;
  const CURLMsg* end = calls.curl_multi_info_read(transfers, &left);
  CURLcode code = end != nullptr ? end->data.result : CURLE_OUT_OF_MEMORY;
  calls.curl_multi_remove_handle(transfers, curl);
  return code;
}

struct HeaderList {
  ~HeaderList() { curl_calls().curl_slist_free_all(list); }
  void add(const std::string& line) { list = curl_calls().curl_slist_append(list, line.c_str()); }
  curl_slist* list = nullptr;
};

Result<int64_t> number_of(const EnvironmentVariables& environment, const char* name,
                          int64_t standard, int64_t max) {
  std::string text = variable(environment, name);
  if (text.empty()) return standard;
  int64_t value = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < 0 || value > max)
    return user_error(fmt::format("{}={} is not a number from 0 to {}", name, text, max));
  return value;
}

}  // namespace

Result<FetchOptions> read_fetch_options(const EnvironmentVariables& environment) {
  constexpr int64_t kRetriesMax = 100, kConnectionsMax = 64;
  FetchOptions options;
  auto retries = number_of(environment, "FLOW_FETCH_RETRIES", options.retries, kRetriesMax);
  FLOW_TRY(retries);
  options.retries = static_cast<uint32_t>(*retries);
  auto connections =
      number_of(environment, "FLOW_FETCH_CONNECTIONS", options.connections, kConnectionsMax);
  FLOW_TRY(connections);
  options.connections = static_cast<uint32_t>(std::max<int64_t>(*connections, 1));
  if (std::string stall = variable(environment, "FLOW_FETCH_STALL"); !stall.empty()) {
    auto time = parse_duration_ms(stall);
    if (!time.ok()) return user_error("FLOW_FETCH_STALL: " + time.error().message);
    options.stall_s = std::max<int64_t>((*time + 999) / 1000, 1);
  }
  options.ca_file = variable(environment, "SSL_CERT_FILE");
  return options;
}

std::string HttpResponse::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

/// State of one exchange, filled by libcurl's callbacks.
struct HttpClient::Exchange {
  CURL* curl;
  const FetchOptions& options;
  const BodyReceiver* receiver;
  size_t body_max;
  HttpResponse response{};
  size_t header_bytes = 0;
  bool is_begun = false;     // on_head was called
  bool is_complete = false;  // the receiver does not want the body
  std::optional<Error> error{};

  /// Calls on_head once. Returns false to end the exchange.
  bool begin() {
    if (is_begun) return true;
    is_begun = true;
    long status = 0;
    curl_calls().curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    response.status = static_cast<int>(status);
    if (receiver == nullptr || status < 200 || status > 299) return true;
    auto wanted = receiver->on_head(response);
    if (!wanted.ok()) error = wanted.error();
    is_complete = wanted.ok() && !*wanted;
    return wanted.ok() && *wanted;
  }

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    return static_cast<Exchange*>(self)->take_header({data, size}) ? size : CURL_WRITEFUNC_ERROR;
  }
  static size_t on_body(char* data, size_t, size_t size, void* self) {
    return static_cast<Exchange*>(self)->take_body({data, size}) ? size : CURL_WRITEFUNC_ERROR;
  }
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& exchange = *static_cast<Exchange*>(self);
    Status running = exchange.options.check_running();
    if (!running.ok() && !exchange.error) exchange.error = running.error();
    return running.ok() ? 0 : 1;
  }

  bool take_header(std::string_view line) {
    header_bytes += line.size();
    if (header_bytes > kHeadersMax) return false;
    if (line.starts_with("HTTP/")) {  // of an interim answer such as 100, or the final one
      response.headers.clear();
      return true;
    }
    size_t colon = line.find(':');
    if (colon != std::string_view::npos)
      response.headers.emplace_back(lower_case(trimmed(line.substr(0, colon))),
                                    std::string(trimmed(line.substr(colon + 1))));
    return true;
  }

  bool take_body(std::string_view data) {
    if (!begin()) return false;
    if (receiver != nullptr && 200 <= response.status && response.status <= 299) {
      Status taken = receiver->on_data(data);
      if (!taken.ok()) error = taken.error();
      return taken.ok();
    }
    if (response.body.size() + data.size() > body_max) return false;
    response.body += data;
    return true;
  }
};

HttpClient::HttpClient(const FetchOptions& options) : options_(options) {
  if (!curl_library().ok()) return;  // send() reports it
  curl_ = curl_calls().curl_easy_init();
  transfers_ = curl_calls().curl_multi_init();
  FLOW_CHECK(curl_ != nullptr && transfers_ != nullptr);
}

HttpClient::~HttpClient() {
  if (curl_ == nullptr) return;
  curl_calls().curl_easy_cleanup(static_cast<CURL*>(curl_));
  curl_calls().curl_multi_cleanup(static_cast<CURLM*>(transfers_));
}

Result<HttpResponse> HttpClient::send_once(const HttpRequest& request,
                                           const BodyReceiver* receiver) {
  CURL* curl = static_cast<CURL*>(curl_);
  const CurlLibrary& calls = curl_calls();
  calls.curl_easy_reset(curl);  // keeps the connections
  Exchange exchange{curl, options_, receiver, request.body_max};
  HeaderList headers;
  for (const auto& [name, value] : request.headers) headers.add(name + ": " + value);
  bool has_authorization = std::ranges::any_of(
      request.headers, [](const auto& each) { return lower_case(each.first) == "authorization"; });
  if (!request.url.user_info.empty() && !has_authorization)
    headers.add("Authorization: Basic " + base64_encode(percent_decode(request.url.user_info)));
  for (const char* line : {"Accept-Encoding: identity", "Expect:", "Content-Type:"})
    headers.add(line);
  std::string url = request_text(request.url);
  std::string user_agent = std::string("flow/") + version();
  char why[CURL_ERROR_SIZE] = "";
  auto set = [&](CURLoption option, auto value) {
    FLOW_CHECK(calls.curl_easy_setopt(curl, option, value) == CURLE_OK);
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_HTTPHEADER, headers.list);
  set(CURLOPT_ERRORBUFFER, why);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_USERAGENT, user_agent.c_str());
  set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(options_.stall_s));
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall_s));
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(options_.exchange_ms));
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &Exchange::on_progress);
  set(CURLOPT_XFERINFODATA, &exchange);
  set(CURLOPT_HEADERFUNCTION, &Exchange::on_header);
  set(CURLOPT_HEADERDATA, &exchange);
  set(CURLOPT_WRITEFUNCTION, &Exchange::on_body);
  set(CURLOPT_WRITEDATA, &exchange);
  const std::string& ca_file = request.ca_file.empty() ? options_.ca_file : request.ca_file;
  if (!ca_file.empty()) set(CURLOPT_CAINFO, ca_file.c_str());
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.method != "GET") {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  FLOW_TRY(options_.check_running());
  CURLcode code = perform(static_cast<CURLM*>(transfers_), curl);
  if (code == CURLE_OK) exchange.begin();  // an answer without a body
  if (exchange.error) return *exchange.error;
  long status = 0;
  calls.curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  HttpResponse response = std::move(exchange.response);
  response.status = static_cast<int>(status);
  if (code != CURLE_OK && !exchange.is_complete) {
    response.failure = code == CURLE_OPERATION_TIMEDOUT && why[0] == '\0'
                           ? "timed out"
                           : calls.curl_easy_strerror(code);
    if (code == CURLE_OPERATION_TIMEDOUT) {
      bool is_bounded = options_.exchange_ms > 0;
      response.failure = is_bounded
                             ? "there was no answer within " + format_duration(options_.exchange_ms)
                             : fmt::format("no byte arrived for {} s", options_.stall_s);
    }
    response.may_retry = may_be_gone_later(code);
  }
  return response;
}

Result<HttpResponse> HttpClient::send(const HttpRequest& request, const BodyReceiver* receiver) {
  FLOW_TRY(curl_library());
  HttpRequest current = request;
  for (int redirects = 0;; redirects++) {
    auto response = send_once(current, receiver);
    FLOW_TRY(response);
    if (!request.follows_redirects || !is_redirect(response->status)) return response;
    std::string location = response->header("location");
    if (location.empty()) return response;
    if (redirects == kRedirectsMax)
      return user_error(fmt::format("`{}` redirects more than {} times: name the final URL",
                                    request.shown, kRedirectsMax));
    auto target = resolve_url(current.url, location);
    if (!target.ok())
      return user_error(fmt::format("`{}` redirects to a URL that is not valid: {}", request.shown,
                                    target.error().message));
    if (current.url.scheme == "https" && target->scheme == "http")
      return user_error(
          fmt::format("`{}` redirects from https to `{}`, which is not encrypted: flow does not "
                      "follow it. Name "
                      "another URL",
                      request.shown, display_url(request_text(*target))));
    if (is_same_origin(current.url, *target)) {
      if (target->user_info.empty()) target->user_info = current.url.user_info;
    } else {
      std::erase_if(current.headers, [](const auto& each) {
        std::string name = lower_case(each.first);
        return name == "authorization" || name == "cookie" || name.starts_with("x-amz-");
      });
    }
    current.url = std::move(*target);
  }
}

}  // namespace flow::fetch
