// The writer's ear: others ask it to run, resume, cancel, signal; processes of the same user
// through the state's socket, and those that hold the cluster's secret by a session with its head.
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

class Server {
 public:
  static Result<std::unique_ptr<Server>> start(EngineService& engine, const std::string& state_dir);
  ~Server();  // interrupts what clients still run here
  /// Runs carried out for clients now.
  uint32_t client_runs() const { return client_runs_; }
  /// Until their runs have ended, and for a moment more until they have read what these came to.
  void wait_for_clients();
  /// Serves whoever is at the other end. Does not block.
  void accept(std::shared_ptr<EngineConnection> connection);

 private:
  class ActiveRunCount;
  struct Client {
    std::shared_ptr<EngineConnection> connection;
    std::thread thread;
    std::atomic<bool> done{false};
    bool has_request = false;                     // its request is here; under mutex_
    bool is_evicted = false;                      // it made room for another; under mutex_
    std::shared_ptr<ClientRunSession> session{};  // what it waits for; under mutex_
  };
  Server(EngineService& engine, int descriptor, std::string path)
      : engine_(engine), descriptor_(descriptor), path_(std::move(path)) {}
  void accept_clients();
  bool ensure_capacity();
  void serve(Client& client);
  Value answer(const Value& request);
  void answer_info(EngineConnection& connection, const Value& request);
  void answer_get(EngineConnection& connection, const Value& request);
  void serve_run(Client& client, const Value& request);
  /// The files that this machine lacks come from the client first. While the pin lives they stay.
  std::unique_ptr<BlobPins::Pin> receive_inputs(EngineConnection& connection,
                                                  const Submission& submission);
  std::shared_ptr<ClientRunSession> start(const Value& request, const Submission& submission,
                                          std::shared_ptr<ActiveRunCount> run_count);
  Value initial_info(const std::string& run);
  std::shared_ptr<ClientRunSession> find(const std::string& request);

  EngineService& engine_;
  int descriptor_;
  std::string path_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Up to kClientsMax; those that are over leave when another comes.
  std::list<Client> clients_;
  // By the name of the request: entries leave in serve_run(), at the run's end for its client.
  std::multimap<std::string, std::shared_ptr<ClientRunSession>> sessions_;
  std::atomic<uint32_t> client_runs_{0};
  std::atomic<bool> quit_{false};
};

}  // namespace flow
