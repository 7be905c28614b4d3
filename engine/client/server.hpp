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
  void take_in(std::shared_ptr<FrameLink> link);

 private:
  class Counted;
  struct Connection {
    std::shared_ptr<FrameLink> link;
    std::thread thread;
    std::atomic<bool> done{false};
    bool heard = false;                  // its request is here; under mutex_
    bool given_up = false;               // it made room for another; under mutex_
    std::shared_ptr<Carried> carried{};  // what it waits for; under mutex_
  };
  Server(EngineService& engine, int descriptor, std::string path)
      : engine_(engine), descriptor_(descriptor), path_(std::move(path)) {}
  void accept_clients();
  bool has_room();
  void serve(Connection& connection);
  Value answer(const Value& request);
  void answer_info(FrameLink& link, const Value& request);
  void answer_get(FrameLink& link, const Value& request);
  void carry_out(Connection& connection, const Value& request);
  /// The files that this machine lacks come from the client first. While the pin lives they stay.
  std::unique_ptr<Driver::Pin> bring(FrameLink& link, const Submission& submission);
  std::shared_ptr<Carried> start(const Value& request, const Submission& submission,
                                 std::shared_ptr<Counted> counted);
  Value first_look(const std::string& run);
  std::shared_ptr<Carried> find(const std::string& request);

  EngineService& engine_;
  int descriptor_;
  std::string path_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Up to kConnectionsMax; those that are over leave when another comes.
  std::list<Connection> connections_;
  // By the name of the request: entries leave in carry_out(), at the run's end for its client.
  std::multimap<std::string, std::shared_ptr<Carried>> carried_;
  std::atomic<uint32_t> client_runs_{0};
  std::atomic<bool> quit_{false};
};

}  // namespace flow
