// The writer's ear: other processes of the same user ask it to run, resume, cancel, signal, through
// the state's socket.
#pragma once
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/driver/link.hpp"

namespace flow {

class LocalEngine;

class Server {
 public:
  static Result<std::unique_ptr<Server>> start(LocalEngine& engine, const std::string& state_dir);
  ~Server();  // interrupts what clients still run here
  /// Runs carried out for clients now.
  uint32_t client_runs() const { return client_runs_; }
  void wait_for_clients();

 private:
  class Counted;
  struct Connection {
    std::unique_ptr<SocketLink> link;
    std::thread thread;
    std::atomic<bool> done{false};
    bool heard = false;     // its request is here; under mutex_
    bool given_up = false;  // it made room for another before that; under mutex_
  };
  Server(LocalEngine& engine, int descriptor, std::string path)
      : engine_(engine), descriptor_(descriptor), path_(std::move(path)) {}
  void accept_clients();
  bool has_room();
  void serve(Connection& connection);
  Value answer(const Value& request);
  void carry_out(Connection& connection, const Value& request);

  LocalEngine& engine_;
  int descriptor_;
  std::string path_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Connection> connections_;
  std::atomic<uint32_t> client_runs_{0};
  std::atomic<bool> quit_{false};
};

}  // namespace flow
