#include "engine/serve/service_routes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "engine/base/remote_url.hpp"
#include "engine/base/size_units.hpp"
#include "engine/serve/http/http_request.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr double kRequestSecondsMax = 1e9;
constexpr size_t kTimeoutBytesShown = 32;

/// Removes the part of `path` up to the next slash. Nothing if it is empty.
std::optional<std::string_view> take_segment(std::string_view& path) {
  size_t end = std::min(path.find('/'), path.size());
  std::string_view segment = path.substr(0, end);
  path.remove_prefix(end);
  if (segment.empty()) return std::nullopt;
  return segment;
}

}  // namespace

Route route_of(std::string_view path) {
  constexpr std::string_view kModels = "/v2/models/", kVersions = "/versions/";
  constexpr std::string_view kRepository = "/v2/repository/models/";
  if (path == "/v2") return {Endpoint::server};
  if (path == "/v2/health/live") return {Endpoint::live};
  if (path == "/v2/health/ready") return {Endpoint::ready};
  if (path == "/metrics") return {Endpoint::metrics};
  if (path == "/v2/repository/index") return {Endpoint::repository_index};
  if (path == "/v2/models/stats") return {Endpoint::statistics};
  if (path.starts_with(kRepository)) {
    path.remove_prefix(kRepository.size());
    auto model = take_segment(path);
    if (!model || (path != "/load" && path != "/unload")) return {};
    return {Endpoint::repository_load, percent_decode(*model)};
  }
  if (!path.starts_with(kModels)) return {};
  path.remove_prefix(kModels.size());
  Route route;
  auto model = take_segment(path);
  if (!model) return {};
  route.model = percent_decode(*model);
  if (path.starts_with(kVersions)) {
    path.remove_prefix(kVersions.size());
    auto version = take_segment(path);
    if (!version) return {};
    route.version = percent_decode(*version);
  }
  if (path.empty()) route.endpoint = Endpoint::model;
  if (path == "/ready") route.endpoint = Endpoint::model_ready;
  if (path == "/config") route.endpoint = Endpoint::model_configuration;
  if (path == "/stats") route.endpoint = Endpoint::model_statistics;
  if (path == "/infer") route.endpoint = Endpoint::infer;
  return route;
}

bool has_model(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::repository_load:
    case Endpoint::model:
    case Endpoint::model_ready:
    case Endpoint::model_configuration:
    case Endpoint::model_statistics:
    case Endpoint::infer:
      return true;
    default:
      return false;
  }
}

std::string_view allowed_methods(std::string_view path) {
  switch (route_of(path).endpoint) {
    case Endpoint::unknown:
      return {};
    case Endpoint::infer:
    case Endpoint::repository_index:
    case Endpoint::repository_load:
      return "POST";
    default:
      return "GET, HEAD";
  }
}

Endpoint front_endpoint(std::string_view path) {
  if (path == "/flow/live") return Endpoint::live;
  if (path == "/flow/ready") return Endpoint::ready;
  if (path == "/flow/metrics") return Endpoint::metrics;
  return Endpoint::unknown;
}

std::string_view forwarded_methods(std::string_view path) {
  return front_endpoint(path) == Endpoint::unknown ? kAnyMethod : "GET, HEAD";
}

Result<std::chrono::microseconds> parse_request_timeout(std::string_view text) {
  bool is_number = !text.empty() && text.find_first_not_of("0123456789.") == std::string_view::npos;
  double seconds = 0;
  if (is_number) {
    auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), seconds, std::chars_format::fixed);
    is_number = error == std::errc() && end == text.data() + text.size();
  } else if (auto us = parse_duration_us(text); us.ok()) {
    is_number = true;
    seconds = static_cast<double>(*us) / 1e6;
  }
  if (!is_number || seconds <= 0)
    return user_error(fmt::format(
        "X-Request-Timeout is `{}`; it is a time above 0, in seconds such as `0.5`, or with a "
        "unit such as `500ms`",
        cut_text(to_line(text), kTimeoutBytesShown)));
  seconds = std::min(seconds, kRequestSecondsMax);
  return std::chrono::microseconds(static_cast<int64_t>(std::ceil(seconds * 1e6)));
}

}  // namespace flow
