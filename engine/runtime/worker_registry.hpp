// Where attempts run: the worker of this process, and those of other machines while they are
// connected.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/worker/worker.hpp"

namespace flow {

/// Thread-safe. Orders for a disconnected worker are dropped: when it rejoins, the core compares
/// its attempts with the state and decides about the missing ones.
class WorkerRegistry {
 public:
  /// Call it before orders are staged. Not thread-safe. It gets the fronts that are held already:
  /// those of services that a start of the engine found on other workers.
  void set_own(std::unique_ptr<Worker> own);
  bool has_own() const { return own_ != nullptr; }
  /// See Worker.
  void leave_services(std::set<core::RunId> runs) {
    if (own_) own_->leave_services(std::move(runs));
  }
  /// Ends every child of this process, but those that are left.
  void end_own() { own_.reset(); }

  void attach(const std::string& name, std::shared_ptr<WorkerConnection> connection,
              std::string address);
  void detach(const std::string& name, const WorkerConnection& connection);

  /// "HOST:PORT" that a connected worker came from; else "".
  std::string address_of(const std::string& name);

  /// Sends each order to its worker. A staged order takes effect at release() of its `commit`.
  void stage(std::vector<AttemptOrder> orders, uint64_t commit);
  void release(uint64_t commit);
  void ack_logs(size_t cost) {
    if (own_) own_->ack_logs(cost);
  }
  void stop(const std::string& name, const core::AttemptId& id, bool kill);
  void interrupt(const std::string& name, const core::AttemptId& id);
  void kill_after_flush(const std::string& name, const core::AttemptId& id);
  void exchange_addresses(const std::string& name, const core::AttemptId& id,
                          const std::vector<std::string>& rank_addresses);
  void ack_saved(const std::string& name, const core::AttemptId& id, const std::string& saved,
                 bool ok);
  /// Lets workers of other machines reach fronts on this one; they learn the ports.
  void open_fronts(FrontGate gate);
  /// As Worker::hold_fronts.
  void hold_fronts(std::vector<HeldFront> fronts);

  /// To all that are connected.
  void forget(const core::RunId& run);
  /// To the worker of this process: no other one has replicas that an earlier engine left.
  void move_replicas(const core::RunId& run, const std::map<core::UnitId, core::UnitId>& units) {
    if (own_) own_->move_replicas(run, units);
  }
  void replicate(const std::string& name, const core::AttemptId& id, const Digest& checkpoint);

 private:
  struct Remote {
    std::shared_ptr<WorkerConnection> connection;
    std::string address;
    uint64_t first_staged = 0,
             last_staged = 0;  // range of commits with staged orders that are not released; 0: none
  };
  void note_front_port(const std::string& front, uint16_t port);
  template <typename Call>
  void call(const std::string& name, Call&& with);

  std::unique_ptr<Worker> own_;
  std::mutex mutex_;
  std::map<std::string, Remote> remotes_;  // connected workers; detach() removes them
  std::vector<HeldFront> held_fronts_;
  std::map<std::string, uint16_t> front_ports_;  // of these, by the name of the folder
};

}  // namespace flow
