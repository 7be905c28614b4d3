// The HTTP requests of a front's clients: Open Inference Protocol v2, health and metrics, or what
// is forwarded to servers.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/thread_pool.hpp"
#include "engine/front/version_set.hpp"
#include "engine/serve/http/http_server.hpp"
#include "engine/serve/model_version.hpp"
#include "engine/serve/service_routes.hpp"
#include "flow/result.hpp"

namespace flow {

/// Only the loop's thread uses it, but for construction, and destruction after the loop has
/// stopped.
class FrontRoutes {
 public:
  struct Callbacks {
    /// As Front::route().
    std::function<Result<std::shared_ptr<ServiceVersion>>(const std::string& model,
                                                          const std::string& version)>
        route;
    /// After a request was given to its version.
    std::function<void()> admitted;
    std::function<bool()> is_ready, is_draining;
  };

  /// All but the callbacks outlive it.
  FrontRoutes(EventLoop& loop, ThreadPool& decoder, const VersionSet& versions,
              Callbacks callbacks);
  ~FrontRoutes();

  void handle(HttpRequest request, HttpReply reply);
  /// Why handle() will refuse the request, as far as its head shows; then it is counted as refused.
  /// Nothing if it may be accepted.
  std::optional<HttpError> refusal(const HttpRequest& head) const;
  /// The answer to a request that has no body, for the version that speaks for the service.
  HttpResponse describe(Endpoint endpoint) const;
  /// Whether a request needs no key, or has one of the service.
  bool permits(std::string_view path, std::string_view authorization) const;

 private:
  struct Inference;

  std::optional<HttpError> forwarding_refusal(const HttpRequest& head) const;
  std::optional<HttpError> model_refusal(const HttpRequest& head) const;
  std::optional<HttpError> refuse_if_full() const;
  Route route_to(std::string_view path) const;
  void forward(HttpRequest request, HttpReply reply, const ServiceVersion& primary);
  Result<std::shared_ptr<ModelVersion>> route_model(const std::string& model,
                                                    const std::string& version) const;
  void infer(HttpRequest& request, HttpReply& reply, const Route& route);
  void decode_apart(const std::shared_ptr<Inference>& inference);
  static void decode(Inference& inference);
  void admit(Inference& inference);

  EventLoop& loop_;
  ThreadPool& decoder_;
  const VersionSet& versions_;
  const Callbacks callbacks_;
  size_t decodes_ = 0;  // that wait for the decoder; up to kDecodesMax
};

}  // namespace flow
