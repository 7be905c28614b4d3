// What answers the requests for a model, apart from the protocol in which they arrive: servers of
// protocols call it, and a front implements it.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/serve/http/request_record.hpp"
#include "engine/serve/infer_responder.hpp"
#include "engine/serve/inference.hpp"
#include "engine/serve/service_routes.hpp"

namespace flow {

/// What the server of a protocol knows of a request.
struct InferCallInfo {
  std::optional<std::chrono::steady_clock::time_point> deadline = {};  // the client's
  std::string traceparent = {};                                        // valid, or ""
  RequestRecord record = {};                                           // without an answer
};

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

  /// Answers now or later. The service's own timeout holds besides the client's deadline.
  virtual void infer(InferRequest request, InferCallInfo call,
                     std::unique_ptr<InferResponder> responder) = 0;
  /// Counts and records a request that was answered with the record's status before infer(), such
  /// as one that is not valid.
  virtual void count_refused(RequestRecord record) = 0;
  /// Records a request that is not one for inference, and its answer.
  virtual void note(RequestRecord record) = 0;
};

}  // namespace flow
