// The paths of a service: Open Inference Protocol v2, health and metrics. Pure.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

enum class Endpoint : uint8_t {
  unknown,
  server,
  live,
  ready,
  metrics,
  repository_index,
  statistics,       // of all models
  repository_load,  // or unload
  model,
  model_ready,
  model_configuration,
  model_statistics,
  infer,
};

struct Route {
  Endpoint endpoint = Endpoint::unknown;
  std::string model = {}, version = {};  // decoded; the version is empty if the path has none
};

Route route_of(std::string_view path);
/// Whether the endpoint is one of a model.
bool has_model(Endpoint endpoint);
/// The methods of a path, as in `Allow`; empty for an unknown path.
std::string_view allowed_methods(std::string_view path);
/// What the front answers itself of a service whose requests are forwarded.
Endpoint front_endpoint(std::string_view path);
/// As allowed_methods(), of such a service: kAnyMethod for the paths of its server.
std::string_view forwarded_methods(std::string_view path);
/// The value of an X-Request-Timeout field: seconds (`2`, `0.5`) or a duration with a unit
/// (`500ms`). Error of kind user if it is neither, or not above 0.
Result<std::chrono::microseconds> parse_request_timeout(std::string_view text);

}  // namespace flow
