// The server in the writer of a state: executes the requests of clients. These are processes of the
// same user, which connect to the socket of the state, and processes on other machines that hold
// the cluster's secret, which connect by a session with the head.
#pragma once
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/client/engine_service.hpp"
#include "engine/client/messages.hpp"
#include "engine/client/run_session.hpp"

namespace flow {

/// Thread-safe. One thread accepts; each connection has a thread of its own, which executes its
/// requests one after the other. The number of connections is bounded: an idle one is evicted for a
/// new one.
///
/// A client that disconnects between requests leaves nothing behind. If the connection of a run
/// breaks, the run continues until the client connects again, or is interrupted when it does not
/// and the run is not detached (ClientRunSession).
class Server {
 public:
  /// Listens at the socket of the state. The engine must outlive the server.
  static Result<std::unique_ptr<Server>> start(EngineService& engine, const std::string& state_dir);
  ~Server();  // hangs up on all clients, and interrupts their runs unless the writer is a head
  /// Runs that are executed for clients now.
  uint32_t client_runs() const { return client_runs_; }
  /// Waits until the runs of clients have ended, and up to 2 s more until the clients have read the
  /// outcomes.
  void wait_for_clients();
  /// Serves `connection` by a new thread. Does not block.
  void accept(std::shared_ptr<EngineConnection> connection);

 private:
  class ActiveRunCount;
  struct Client {
    std::shared_ptr<EngineConnection> connection;
    std::thread thread;
    std::atomic<bool> done{false};
    bool has_request = false;                     // it has sent a request; under mutex_
    bool is_evicted = false;                      // for another client; under mutex_
    std::shared_ptr<ClientRunSession> session{};  // the run that it follows; under mutex_
  };
  Server(EngineService& engine, int descriptor, std::string path)
      : engine_(engine), descriptor_(descriptor), path_(std::move(path)) {}
  void accept_clients();
  bool ensure_capacity();
  void serve(Client& client);
  /// The one reply to a request of `connection` that does not start a run. Throws Failed, as the
  /// next.
  ServerReply reply_to(const ClientRequest& request, const EngineConnection& connection);
  void show_run(EngineConnection& connection, const client_protocol::ShowRun& request);
  void export_result(EngineConnection& connection, const client_protocol::ExportResult& request);
  void serve_run(Client& client, const ClientRequest& request);
  /// Receives the files that this machine lacks from the client. They stay while the pin exists.
  std::unique_ptr<BlobPins::Pin> receive_inputs(EngineConnection& connection,
                                                const Submission& submission);
  std::shared_ptr<detail::RunHandle> start(const ClientRequest& request,
                                           const Submission& submission);
  /// The session that a client of this request id has here; null if the request is new.
  std::shared_ptr<ClientRunSession> find(const std::string& request);

  EngineService& engine_;
  int descriptor_;
  std::string path_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Up to kClientsMax; accept() removes those whose thread is done.
  std::list<Client> clients_;
  // By the id of the request; serve_run() removes an entry when no client waits for its run.
  std::multimap<std::string, std::shared_ptr<ClientRunSession>> sessions_;
  std::atomic<uint32_t> client_runs_{0};
  std::atomic<bool> quit_{false};
};

}  // namespace flow
