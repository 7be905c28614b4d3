#include "engine/telemetry/span_exporter.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "engine/base/engine_thread.hpp"
#include "engine/base/log.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/fetch/http_client.hpp"
#include "engine/telemetry/otlp.hpp"
#include "flow/flow.hpp"

extern char** environ;

namespace flow {

namespace {

constexpr std::chrono::milliseconds kGather{500};  // for a fuller batch
constexpr std::chrono::milliseconds kRetryPause{1'000}, kRetryPauseMax{8'000};
constexpr int kTries = 5;
constexpr const char* kEndpoint = "OTEL_EXPORTER_OTLP_ENDPOINT";
constexpr const char* kTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

std::string value_of(const EnvironmentVariables& environment, std::string_view name) {
  for (const auto& [each, value] : environment)
    if (each == name) return value;
  return "";
}

std::string trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string_view::npos ? "" : std::string(text.substr(begin, end - begin + 1));
}

/// "a=b,c=d%2C": names and decoded values.
Result<std::vector<std::pair<std::string, std::string>>> pairs_of(const std::string& text,
                                                                  const char* variable) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::string_view rest = text;
  while (!rest.empty()) {
    size_t end = std::min(rest.find(','), rest.size());
    std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (trimmed(part).empty()) continue;
    size_t equals = part.find('=');
    std::string name = trimmed(part.substr(0, equals));
    if (equals == std::string_view::npos || name.empty())
      return user_error(fmt::format("{} is a list such as `name=value,other=value`", variable));
    std::string value = percent_decode(trimmed(part.substr(equals + 1)));
    if ((name + value).find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos)
      return user_error(fmt::format("{} has a line break in `{}`", variable, name));
    pairs.emplace_back(std::move(name), std::move(value));
  }
  return pairs;
}

bool may_retry(const fetch::HttpResponse& response) {
  if (!response.failure.empty()) return response.may_retry;
  int status = response.status;
  return status == 429 || status == 502 || status == 503 || status == 504;
}

}  // namespace

Result<SpanTarget> span_target(const EnvironmentVariables& environment) {
  SpanTarget target;
  auto get = [&](std::string_view name) { return value_of(environment, name); };
  const std::string own = get(kTracesEndpoint), common = get(kEndpoint);
  bool is_off = get("OTEL_SDK_DISABLED") == "true" || get("OTEL_TRACES_EXPORTER") == "none";
  if (is_off || (own.empty() && common.empty())) return target;
  std::string protocol = get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL");
  if (protocol.empty()) protocol = get("OTEL_EXPORTER_OTLP_PROTOCOL");
  if (!protocol.empty() && protocol != "http/protobuf")
    return user_error(fmt::format(
        "OTEL_EXPORTER_OTLP_PROTOCOL is `{}`, and flow sends traces by http/protobuf only. Set "
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf, and {} to the collector's HTTP port, "
        "which is usually 4318",
        protocol, kTracesEndpoint));
  const char* variable = own.empty() ? kEndpoint : kTracesEndpoint;
  std::string text = own;
  if (own.empty()) text = common + (common.ends_with('/') ? "v1/traces" : "/v1/traces");
  auto url = parse_url(text);
  if (!url.ok() || (url->scheme != "http" && url->scheme != "https"))
    return user_error(fmt::format("{} is not a URL such as http://127.0.0.1:4318{}", variable,
                                  url.ok() ? "" : ": " + url.error().message));
  target.url = std::move(*url);
  target.shown = display_url(text);
  target.ca_file = get("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE");
  if (target.ca_file.empty()) target.ca_file = get("OTEL_EXPORTER_OTLP_CERTIFICATE");
  if (target.ca_file.empty()) target.ca_file = get("SSL_CERT_FILE");
  const char* headers = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
  if (get(headers).empty()) headers = "OTEL_EXPORTER_OTLP_HEADERS";
  auto fields = pairs_of(get(headers), headers);
  FLOW_TRY(fields);
  target.headers = std::move(*fields);
  auto attributes = pairs_of(get("OTEL_RESOURCE_ATTRIBUTES"), "OTEL_RESOURCE_ATTRIBUTES");
  FLOW_TRY(attributes);
  std::string service = get("OTEL_SERVICE_NAME");
  for (auto& [name, value] : *attributes) {
    if (name == "service.name" && service.empty()) service = value;
    if (name != "service.name") target.resource.emplace_back(name, value);
  }
  target.resource.emplace_back("service.name", service.empty() ? "flow" : service);
  target.resource.emplace_back("service.version", version());
  target.resource.emplace_back("host.name", machine_name());
  target.resource.emplace_back("process.pid", int64_t{::getpid()});
  target.is_on = true;
  return target;
}

EnvironmentVariables trace_variables() {
  EnvironmentVariables variables;
  for (char** entry = environ; *entry != nullptr; entry++) {
    std::string_view text = *entry;
    size_t equals = text.find('=');
    bool is_meant = text.starts_with("OTEL_") || text.starts_with("SSL_CERT_FILE=");
    if (is_meant && equals != std::string_view::npos)
      variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

SpanExporter::SpanExporter(SpanTarget target, SpanLimits limits)
    : target_(std::move(target)), limits_(limits) {
  thread_ = engine_thread([this] { work(); });
}

SpanExporter::~SpanExporter() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
    flush_end_ = Clock::now() + limits_.flush;
    answer_by_ = Clock::now() + limits_.silence;
  }
  changed_.notify_all();
  thread_.join();
}

void SpanExporter::set_on_drop(OnDrop on_drop) {
  std::lock_guard lock(drop_mutex_);
  on_drop_ = std::move(on_drop);
}

void SpanExporter::add(std::vector<Span> spans) {
  {
    std::lock_guard lock(mutex_);
    for (Span& span : spans) {
      if (waiting_.size() >= kWaitingMax) {
        dropped_++;
        has_overflowed_ = true;  // the sending thread reports it
        continue;
      }
      waiting_.push_back(std::move(span));
    }
  }
  changed_.notify_all();
}

bool SpanExporter::is_over() const {
  std::lock_guard lock(mutex_);
  return is_stopping_ && Clock::now() >= std::min(flush_end_, answer_by_);
}

bool SpanExporter::pause(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [this] { return is_stopping_; });
  // No retries while stopping: the flush sends each batch once.
  return !is_stopping_;
}

void SpanExporter::work() {
  while (true) {
    std::vector<Span> batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
      changed_.wait_for(lock, kGather,
                        [this] { return is_stopping_ || waiting_.size() >= kBatchMax; });
      if (waiting_.empty()) return;
      size_t count = std::min(waiting_.size(), kBatchMax);
      auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
      std::move(waiting_.begin(), end, std::back_inserter(batch));
      waiting_.erase(waiting_.begin(), end);
    }
    send(batch);
    if (has_overflowed_.exchange(false)) drop(0, "it takes them more slowly than they are made");
  }
}

void SpanExporter::send(const std::vector<Span>& batch) {
  const std::string body = encode_spans(batch, target_.resource);
  fetch::FetchOptions options;
  options.exchange_ms = limits_.exchange.count();
  options.ca_file = target_.ca_file;
  options.check_running = [this]() -> Status {
    if (is_over()) return environment_error("the process ended before the collector answered");
    return {};
  };
  fetch::HttpRequest request;
  request.method = "POST";
  request.url = target_.url;
  request.headers = target_.headers;
  request.headers.emplace_back("Content-Type", "application/x-protobuf");
  request.body = body;
  request.follows_redirects = false;
  request.shown = target_.shown;
  std::chrono::milliseconds time = kRetryPause;
  for (int tries = 1;; tries++) {
    fetch::HttpClient client(options);
    auto response = client.send(request);
    if (!response.ok()) return drop(batch.size(), response.error().message);
    if (response->ok()) return count_exported(batch.size());
    std::string why = response->failure.empty() ? fmt::format("it answered {}", response->status)
                                                : response->failure;
    if (tries == kTries || !may_retry(*response) || !pause(time)) return drop(batch.size(), why);
    time = std::min(2 * time, kRetryPauseMax);
  }
}

void SpanExporter::count_exported(size_t count) {
  exported_ += count;
  std::lock_guard lock(mutex_);
  answer_by_ = Clock::now() + limits_.silence;
}

void SpanExporter::drop(size_t count, const std::string& why) {
  dropped_ += count;
  std::lock_guard lock(drop_mutex_);
  if (!first_drop_.empty()) return;
  first_drop_ = fmt::format(
      "traces are lost, because the collector at `{}` does not accept them: {}. Runs continue "
      "without them",
      target_.shown, why);
  log::warning("spans dropped", {.detail = first_drop_});
  if (on_drop_) on_drop_(first_drop_);
}

}  // namespace flow
