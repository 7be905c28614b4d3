#include "engine/fetch/retry_delay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "engine/base/clock.hpp"
#include "engine/base/ids.hpp"
#include "engine/fetch/s3_xml.hpp"

namespace flow::fetch {

namespace {

constexpr int64_t kRetryAfterMaxS = 60;  // a server may ask for more

/// Seconds of `Retry-After`; 0 if it is missing or a date.
int64_t retry_after_s(const HttpResponse& response) {
  std::string text = response.header("retry-after");
  int64_t seconds = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  bool is_number = failed == std::errc() && end == text.data() + text.size();
  return is_number ? std::clamp<int64_t>(seconds, 0, kRetryAfterMaxS) : 0;
}

Status sleep_ms(int64_t time_ms, const FetchOptions& options) {
  constexpr int64_t kSliceMs = 50;
  for (int64_t end = monotonic_us() + time_ms * 1000, now = monotonic_us(); now < end;
       now = monotonic_us()) {
    FLOW_TRY(options.check_running());
    std::this_thread::sleep_for(
        std::chrono::milliseconds(std::min(kSliceMs, (end - now) / 1000 + 1)));
  }
  return options.check_running();
}

}  // namespace

bool is_transient(const HttpResponse& response) {
  if (!response.failure.empty()) return response.may_retry;
  return response.status == 408 || response.status == 429 || response.status >= 500;
}

std::string failure_text(const HttpResponse& response) {
  if (!response.failure.empty()) return response.failure;
  std::string code = parse_s3_failure(response.body).code;
  constexpr size_t kCodeShown = 64;
  bool is_word =
      !code.empty() && code.size() <= kCodeShown && std::ranges::all_of(code, [](char c) {
        return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9');
      });
  return fmt::format("the server answered {}{}", response.status, is_word ? " (" + code + ")" : "");
}

Result<bool> RetryDelay::wait(const HttpResponse& failed) {
  if (failures_ >= options_.retries) return false;
  int64_t longest = options_.backoff_ms;
  for (uint32_t i = 0; i < failures_ && longest < options_.backoff_ms_max; i++) longest *= 2;
  longest = std::max<int64_t>(std::min(longest, options_.backoff_ms_max), 1);
  failures_++;
  int64_t pause =
      longest / 2 + static_cast<int64_t>(random_u64() % static_cast<uint64_t>(longest / 2 + 1));
  FLOW_TRY(sleep_ms(std::max(pause, retry_after_s(failed) * 1000), options_));
  return true;
}

Result<HttpResponse> send_with_retries(HttpClient& client, const FetchOptions& options,
                                       const std::function<HttpRequest()>& make_request) {
  RetryDelay delay(options);
  while (true) {
    auto response = client.send(make_request());
    FLOW_TRY(response);
    if (response->ok() || !is_transient(*response)) return response;
    auto again = delay.wait(*response);
    FLOW_TRY(again);
    if (!*again) return response;
  }
}

}  // namespace flow::fetch
