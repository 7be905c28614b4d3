// Answers the requests of the page: its files, its data and its actions.
#pragma once
#include <memory>
#include <string>

#include "engine/page/event_stream.hpp"
#include "engine/page/page_access.hpp"
#include "engine/page/state_thread.hpp"
#include "engine/serve/http/http_server.hpp"
#include "flow/flow.hpp"

namespace flow {

namespace client_protocol {
class ClientRequest;
}

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
  HttpResponse answer(const Reader& reader, const PageRoute& route, const PageQuery& query,
                      const std::string& body) const;
  std::string session_json() const;
  HttpResponse cancel(const std::string& run) const;
  HttpResponse signal(const std::string& run, const std::string& name,
                      const std::string& json) const;
  /// Asks the writer of the state. `command`: what does the same, for the case that there is none.
  HttpResponse act(const client_protocol::ClientRequest& request, const std::string& run,
                   const std::string& command) const;

  const std::string state_dir_;
  const std::string fields_;            // of all responses
  std::unique_ptr<PageAccess> access_;  // set before requests arrive
  EventStreams streams_;
  StateThread state_;                   // after what its jobs use
  std::unique_ptr<HttpServer> server_;  // last: it calls handle()
};

}  // namespace flow
