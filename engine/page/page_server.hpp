// Answers the requests of the page: its files, its data and its actions.
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "engine/page/event_stream.hpp"
#include "engine/page/page_access.hpp"
#include "engine/page/state_thread.hpp"
#include "engine/serve/http/http_server.hpp"
#include "flow/flow.hpp"

namespace flow {

class PageServer {
 public:
  /// Listens at the address, one of loopback. `state_dir` is the state of `options`.
  static Result<std::unique_ptr<PageServer>> open(const EngineOptions& options,
                                                  const std::string& state_dir,
                                                  const HttpOptions& http);

  uint16_t port() const { return server_->port(); }
  const std::string& link_token() const { return access_->tokens().link; }

 private:
  PageServer(EngineOptions options, std::string state_dir);
  /// On the server's thread.
  void handle(HttpRequest request, HttpReply reply);
  /// On the state's thread.
  HttpResponse answer(const Reader& reader, const PageRoute& route, const PageQuery& query) const;
  HttpResponse logs(const std::string& run, const PageQuery& query) const;
  std::string session_json() const;
  struct Action;
  Action cancel(const std::string& run) const;
  Action signal(const std::string& run, const std::string& name, const std::string& json) const;
  /// Asks the writer of the state on a thread of its own, because a writer may be suspended.
  void start(Action action, std::shared_ptr<HttpReply> reply) const;

  const EngineOptions options_;  // of the state
  const std::string state_dir_;
  const std::string fields_;  // of all responses
  const std::shared_ptr<std::atomic<size_t>> actions_ =
      std::make_shared<std::atomic<size_t>>(0);  // that have no answer yet
  std::unique_ptr<PageAccess> access_;           // set before requests arrive
  EventStreams streams_;
  StateThread state_;                   // after what its jobs use
  std::unique_ptr<HttpServer> server_;  // last: it calls handle()
};

}  // namespace flow
