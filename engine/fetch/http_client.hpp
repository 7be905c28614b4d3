// One HTTP exchange at a time over a kept connection: the only user of libcurl.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/base/remote_url.hpp"
#include "engine/fetch/fetch_options.hpp"
#include "engine/fetch/sigv4.hpp"

namespace flow::fetch {

constexpr size_t kBodyMax = 64 << 20;

struct HttpRequest {
  std::string method = "GET";
  Url url;
  Headers headers;
  std::string_view body = {};     // must outlive the exchange
  bool follows_redirects = true;  // at most kRedirectsMax, never from https to http
  std::string ca_file;            // instead of FetchOptions::ca_file
  size_t body_max = kBodyMax;     // bytes of an answer's body; a longer one is a failure
  std::string shown;              // how errors name the target; it holds no secrets
};
constexpr int kRedirectsMax = 5;

struct HttpResponse {
  int status = 0;          // 0: no answer arrived
  Headers headers;         // names in lower case; of the last answer
  std::string body;        // unless the caller takes it; at most body_max bytes
  std::string failure;     // why the exchange is incomplete; "" if it is complete
  bool may_retry = false;  // whether the failure may be gone at another attempt
  bool ok() const { return failure.empty() && 200 <= status && status < 300; }
  std::string header(std::string_view name) const;  // "" if it is missing
};

/// Receives the body of an answer with a status of 2xx.
struct BodyReceiver {
  /// After the headers. False ends the exchange without the body, which is not a failure.
  std::function<Result<bool>(const HttpResponse&)> on_head;
  std::function<Status(std::string_view)> on_data;
};

/// One thread at a time.
class HttpClient {
 public:
  explicit HttpClient(const FetchOptions& options);  // borrowed
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Bytes of the body are received as they were sent, without decoding. Failures of the network
  /// are in the response; an error is final: it is from the receiver, from check_running, or for a
  /// redirect that is not followed.
  Result<HttpResponse> send(const HttpRequest& request, const BodyReceiver* receiver = nullptr);

 private:
  struct Exchange;
  Result<HttpResponse> send_once(const HttpRequest& request, const BodyReceiver* receiver);

  const FetchOptions& options_;
  void* curl_ = nullptr;
  void* transfers_ = nullptr;  // libcurl's, with the kept connections
};

}  // namespace flow::fetch
