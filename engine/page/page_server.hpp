// Answers the requests of the page: its files, its data and its actions.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/thread_group.hpp"
#include "engine/page/event_stream.hpp"
#include "engine/page/gpu_readings.hpp"
#include "engine/page/page_access.hpp"
#include "engine/page/page_actions.hpp"
#include "engine/page/state_thread.hpp"
#include "engine/page/task_table.hpp"
#include "engine/serve/http/http_server.hpp"
#include "flow/flow.hpp"

namespace flow {

/// The page's HTTP server. Files are answered on the server's thread, reads of the state on that of
/// `state_`, and whatever may block for long on a thread per request.
class PageServer {
 public:
  /// Listens at the address. `state_dir` is the state of `options`; `who` is recorded as the
  /// requester of its actions.
  static Result<std::unique_ptr<PageServer>> open(const EngineOptions& options,
                                                  const std::string& state_dir,
                                                  const HttpOptions& http, PageExposure exposure,
                                                  const std::string& who);

  uint16_t port() const { return server_->port(); }
  const std::string& link_token() const { return access_->tokens().link; }

 private:
  PageServer(EngineOptions options, std::string state_dir, const std::string& who);
  /// On the server's thread.
  void handle(HttpRequest request, HttpReply reply);
  /// On the server's thread: starts what needs a thread of its own. False if the endpoint needs
  /// none.
  bool start_view(const PageRoute& route, const PageQuery& query,
                  const std::shared_ptr<HttpReply>& reply);
  // On the state's thread:
  void act(const StateFollower& state, const PageRoute& route, const PageQuery& query,
           const std::string& body, const std::string& by, std::shared_ptr<HttpReply> reply);
  HttpResponse answer(const StateFollower& state, const PageRoute& route, const PageQuery& query);
  HttpResponse logs(const std::string& run, const PageQuery& query) const;
  std::string session_json() const;
  enum class Work : uint8_t {
    reads_state,  // joined by the destructor
    asks_writer,  // detached: a suspended writer may never answer
  };
  /// Answers with what `work` returns, on a thread of its own. It may throw Failed.
  void start(Work kind, std::function<HttpResponse()> work, std::shared_ptr<HttpReply> reply);

  const EngineOptions options_;  // of the state
  const std::string state_dir_;
  const std::string fields_;  // of all responses
  const PageActions actions_;
  const std::shared_ptr<std::atomic<size_t>> started_ =
      std::make_shared<std::atomic<size_t>>(0);  // unanswered requests with a thread
  const std::shared_ptr<GpuReadings> gpus_;      // shared with requests that outlive the page
  std::unique_ptr<PageAccess> access_;           // set by open(); handle() waits for that
  ThreadGroup readers_;
  TaskTables tables_;  // as streams_: only the state's thread uses it
  EventStreams streams_{tables_};
  StateThread state_;                   // after what its jobs use
  std::unique_ptr<HttpServer> server_;  // last: it calls handle()
};

}  // namespace flow
