// When an exchange is tried again: exponential backoff with jitter, at least what the server asks
// for.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "engine/fetch/http_client.hpp"

namespace flow::fetch {

/// Whether the same request may succeed later: no complete answer, 408, 429, or 500 to 599.
bool is_transient(const HttpResponse& response);
/// "the server answered 404 (NoSuchKey)", or the failure of the network.
std::string failure_text(const HttpResponse& response);

class RetryDelay {
 public:
  explicit RetryDelay(const FetchOptions& options) : options_(options) {}
  /// Whether another attempt is left. If so, waits before it. Error from check_running.
  Result<bool> wait(const HttpResponse& failed);
  /// An attempt made progress: failures are counted from zero.
  void reset() { failures_ = 0; }
  uint32_t failures() const { return failures_; }

 private:
  const FetchOptions& options_;
  uint32_t failures_ = 0;
};

/// Sends the request, made again for each attempt, until the answer is not transient or the retries
/// are spent.
Result<HttpResponse> send_with_retries(HttpClient& client, const FetchOptions& options,
                                       const std::function<HttpRequest()>& make_request);

}  // namespace flow::fetch
