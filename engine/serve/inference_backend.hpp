// What answers the requests for a model, apart from the protocol in which they arrive: servers of
// protocols call it, and a front implements it.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/serve/infer_responder.hpp"
#include "engine/serve/inference.hpp"
#include "engine/serve/service_routes.hpp"

namespace flow {

/// Thread-safe. No function waits for a model.
class InferenceBackend {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~InferenceBackend() = default;

  /// The name of the one model.
  virtual std::string model() const = 0;
  /// Whether the value of an Authorization field permits requests; "" if there is none.
  virtual bool permits(std::string_view authorization) const = 0;
  virtual bool is_ready() const = 0;
  /// The JSON with which HTTP answers `server`, `model`, `model_configuration`, `model_statistics`
  /// or `repository_index`.
  virtual std::string describe(Endpoint endpoint) const = 0;

  /// Answers now or later. `deadline` is the client's; the service's own timeout holds too.
  virtual void infer(InferRequest request, std::optional<Clock::time_point> deadline,
                     std::unique_ptr<InferResponder> responder) = 0;
  /// Counts a request that was answered with this status of HTTP before infer(), such as one that
  /// is not valid.
  virtual void count_refused(int status, Clock::duration duration) = 0;
};

}  // namespace flow
