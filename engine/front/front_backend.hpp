// The model of a front for servers of other protocols than HTTP, which call it on their threads.
#pragma once
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/front/version_set.hpp"
#include "engine/serve/http/event_loop.hpp"
#include "engine/serve/http/http_server.hpp"
#include "engine/serve/inference_backend.hpp"
#include "flow/result.hpp"

namespace flow {

/// Requests and questions are handed to the loop. Before the first set_primary() it has no model,
/// permits nothing and never waits for the loop.
class FrontBackend final : public InferenceBackend {
 public:
  /// Called on the loop's thread; describe() also by close().
  struct Callbacks {
    /// As Front::route(). The version is one that predicts.
    std::function<Result<std::shared_ptr<ServiceVersion>>(const std::string& model,
                                                          const std::string& version)>
        route;
    /// After a request was given to its version.
    std::function<void()> admitted;
    /// What HTTP answers.
    std::function<HttpResponse(Endpoint endpoint)> describe;
  };

  /// All but the callbacks outlive it.
  FrontBackend(EventLoop& loop, const VersionSet& versions, RequestLog& requests,
               Callbacks callbacks);

  std::string model() const override;
  bool permits(std::string_view authorization) const override;
  bool is_ready() const override;
  std::string describe(Endpoint endpoint) const override;
  void infer(InferRequest request, InferCallInfo call,
             std::unique_ptr<InferResponder> responder) override;
  void count_refused(RequestRecord record) override;
  void note(RequestRecord record) override;

  /// The version that speaks for the service. On the loop's thread.
  void set_primary(const VersionSet::Entry& primary);
  /// Answers the questions that wait; later ones get nothing. After the loop has stopped.
  void close();

 private:
  struct Question {
    Endpoint endpoint;
    std::promise<HttpResponse> answer;
  };

  HttpResponse ask(Endpoint endpoint) const;
  void answer_all() const;

  EventLoop& loop_;
  const VersionSet& versions_;
  RequestLog& requests_;
  const Callbacks callbacks_;
  mutable std::mutex mutex_;
  std::string model_;                        // "": there is none yet
  std::optional<ApiKeys> keys_;              // nothing: requests need none
  mutable std::vector<Question> questions_;  // one for each thread that waits
  bool is_closed_ = false;
};

}  // namespace flow
