#include "engine/runtime/worker_registry.hpp"

#include <algorithm>
#include <utility>

namespace flow {

void WorkerRegistry::set_own(std::unique_ptr<Worker> own) {
  own_ = std::move(own);
  if (!held_fronts_.empty()) own_->hold_fronts(held_fronts_);
}

void WorkerRegistry::attach(const std::string& name, std::shared_ptr<WorkerConnection> connection,
                            std::string address) {
  std::lock_guard lock(mutex_);
  for (const auto& [front, port] : front_ports_) connection->set_front_port(front, port);
  remotes_[name] = {std::move(connection), address.substr(0, address.find(' ')), 0, 0};
}

void WorkerRegistry::detach(const std::string& name, const WorkerConnection& connection) {
  std::lock_guard lock(mutex_);
  auto found = remotes_.find(name);
  if (found != remotes_.end() && found->second.connection.get() == &connection)
    remotes_.erase(found);
}

void WorkerRegistry::stage(std::vector<AttemptOrder> orders, uint64_t commit) {
  std::map<std::string, std::vector<AttemptOrder>> others;
  auto is_for_other = [&](AttemptOrder& order) {
    if (order.worker.empty()) return false;
    others[order.worker].push_back(std::move(order));
    return true;
  };
  std::erase_if(orders, is_for_other);
  if (!orders.empty()) own_->stage(std::move(orders), commit);
  for (auto& [name, theirs] : others) {
    std::shared_ptr<WorkerConnection> connection;
    {
      std::lock_guard lock(mutex_);
      auto found = remotes_.find(name);
      if (found == remotes_.end()) continue;
      Remote& remote = found->second;
      connection = remote.connection;
      if (commit > 0) {
        if (remote.first_staged == 0) remote.first_staged = commit;
        remote.last_staged = commit;
      }
    }
    connection->stage(std::move(theirs), commit);
  }
}

// A worker without staged orders is not notified of each commit.
void WorkerRegistry::release(uint64_t commit) {
  if (own_) own_->release(commit);
  std::vector<std::shared_ptr<WorkerConnection>> waiting;
  {
    std::lock_guard lock(mutex_);
    for (auto& [name, remote] : remotes_) {
      if (remote.first_staged == 0 || remote.first_staged > commit) continue;
      waiting.push_back(remote.connection);
      remote.first_staged = remote.last_staged > commit ? commit + 1 : 0;
    }
  }
  for (const auto& connection : waiting) connection->release(commit);
}

template <typename Call>
void WorkerRegistry::call(const std::string& name, Call&& with) {
  if (name.empty()) {
    if (own_) with(*own_);
    return;
  }
  std::shared_ptr<WorkerConnection> connection;
  {
    std::lock_guard lock(mutex_);
    auto found = remotes_.find(name);
    if (found == remotes_.end()) return;
    connection = found->second.connection;
  }
  with(*connection);
}

void WorkerRegistry::stop(const std::string& name, const core::AttemptId& id, bool kill) {
  call(name, [&](Worker& worker) { worker.stop(id, kill); });
}

void WorkerRegistry::interrupt(const std::string& name, const core::AttemptId& id) {
  call(name, [&](Worker& worker) { worker.interrupt(id); });
}

void WorkerRegistry::kill_after_flush(const std::string& name, const core::AttemptId& id) {
  call(name, [&](Worker& worker) { worker.kill_after_flush(id); });
}

void WorkerRegistry::exchange_addresses(const std::string& name, const core::AttemptId& id,
                                        const std::vector<std::string>& rank_addresses) {
  call(name, [&](Worker& worker) { worker.exchange_addresses(id, rank_addresses); });
}

std::string WorkerRegistry::address_of(const std::string& name) {
  std::lock_guard lock(mutex_);
  auto found = remotes_.find(name);
  return found == remotes_.end() ? "" : found->second.address;
}

void WorkerRegistry::ack_saved(const std::string& name, const core::AttemptId& id,
                               const std::string& saved, bool ok) {
  call(name, [&](Worker& worker) { worker.ack_saved(id, saved, ok); });
}

void WorkerRegistry::forget(const core::RunId& run) {
  std::vector<std::shared_ptr<WorkerConnection>> connections;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, remote] : remotes_) connections.push_back(remote.connection);
  }
  for (const auto& connection : connections) connection->forget(run);
  call("", [&](Worker& worker) { worker.forget(run); });
}

void WorkerRegistry::open_fronts(FrontGate gate) {
  if (!own_) return;
  gate.on_port = [this](const std::string& front, uint16_t port) { note_front_port(front, port); };
  own_->open_fronts(std::move(gate));
}

void WorkerRegistry::hold_fronts(std::vector<HeldFront> fronts) {
  {
    std::lock_guard lock(mutex_);
    if (fronts == held_fronts_) return;
    held_fronts_ = fronts;
    std::erase_if(front_ports_, [&](const auto& entry) {
      return std::ranges::none_of(fronts, [&](const HeldFront& front) {
        return front.folder.ends_with("/" + entry.first);
      });
    });
  }
  if (own_) own_->hold_fronts(std::move(fronts));
}

void WorkerRegistry::note_front_port(const std::string& front, uint16_t port) {
  std::vector<std::shared_ptr<WorkerConnection>> connections;
  {
    std::lock_guard lock(mutex_);
    front_ports_[front] = port;
    for (const auto& [name, remote] : remotes_) connections.push_back(remote.connection);
  }
  for (const auto& connection : connections) connection->set_front_port(front, port);
}

void WorkerRegistry::replicate(const std::string& name, const core::AttemptId& id,
                               const Digest& checkpoint) {
  call(name, [&](Worker& worker) { worker.replicate(id, checkpoint); });
}

}  // namespace flow
