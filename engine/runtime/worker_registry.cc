#include "engine/runtime/worker_registry.hpp"

#include <algorithm>
#include <utility>

namespace flow {

void Fleet::attach(const std::string& name, std::shared_ptr<RemoteHost> host, std::string address) {
  std::lock_guard lock(mutex_);
  remotes_[name] = {std::move(host), address.substr(0, address.find(' ')), 0, 0};
}

void Fleet::detach(const std::string& name, const RemoteHost& host) {
  std::lock_guard lock(mutex_);
  auto found = remotes_.find(name);
  if (found != remotes_.end() && found->second.host.get() == &host) remotes_.erase(found);
}

void Fleet::stage(std::vector<AttemptOrder> orders, uint64_t commit) {
  std::map<std::string, std::vector<AttemptOrder>> others;
  auto is_for_other = [&](AttemptOrder& order) {
    if (order.worker.empty()) return false;
    others[order.worker].push_back(std::move(order));
    return true;
  };
  std::erase_if(orders, is_for_other);
  if (!orders.empty()) own_->stage(std::move(orders), commit);
  for (auto& [name, theirs] : others) {
    std::shared_ptr<RemoteHost> host;
    {
      std::lock_guard lock(mutex_);
      auto found = remotes_.find(name);
      if (found == remotes_.end()) continue;
      Remote& remote = found->second;
      host = remote.host;
      if (commit > 0) {
        if (remote.first_staged == 0) remote.first_staged = commit;
        remote.last_staged = commit;
      }
    }
    host->stage(std::move(theirs), commit);
  }
}

// Those that nothing was staged for need not be told of each commit.
void Fleet::release(uint64_t commit) {
  own_->release(commit);
  std::vector<std::shared_ptr<RemoteHost>> waiting;
  {
    std::lock_guard lock(mutex_);
    for (auto& [name, remote] : remotes_) {
      if (remote.first_staged == 0 || remote.first_staged > commit) continue;
      waiting.push_back(remote.host);
      remote.first_staged = remote.last_staged > commit ? commit + 1 : 0;
    }
  }
  for (const auto& host : waiting) host->release(commit);
}

template <typename Call>
void Fleet::call(const std::string& name, Call&& with) {
  if (name.empty()) {
    if (own_) with(*own_);
    return;
  }
  std::shared_ptr<RemoteHost> host;
  {
    std::lock_guard lock(mutex_);
    auto found = remotes_.find(name);
    if (found == remotes_.end()) return;
    host = found->second.host;
  }
  with(*host);
}

void Fleet::stop(const std::string& name, const core::AttemptId& id, bool kill) {
  call(name, [&](Worker& worker) { worker.stop(id, kill); });
}

void Fleet::interrupt(const std::string& name, const core::AttemptId& id) {
  call(name, [&](Worker& worker) { worker.interrupt(id); });
}

void Fleet::settle(const std::string& name, const core::AttemptId& id) {
  call(name, [&](Worker& worker) { worker.settle(id); });
}

void Fleet::meet(const std::string& name, const core::AttemptId& id,
                 const std::vector<std::string>& whereabouts) {
  call(name, [&](Worker& worker) { worker.meet(id, whereabouts); });
}

std::string Fleet::address_of(const std::string& name) {
  std::lock_guard lock(mutex_);
  auto found = remotes_.find(name);
  return found == remotes_.end() ? "" : found->second.address;
}

void Fleet::ack_saved(const std::string& name, const core::AttemptId& id, const std::string& saved,
                      bool ok) {
  call(name, [&](Worker& worker) { worker.ack_saved(id, saved, ok); });
}

void Fleet::forget(const core::RunId& run) {
  std::vector<std::shared_ptr<RemoteHost>> hosts;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, remote] : remotes_) hosts.push_back(remote.host);
  }
  for (const auto& host : hosts) host->forget(run);
}

void Fleet::replicate(const std::string& name, const core::AttemptId& id,
                      const Digest& checkpoint) {
  call(name, [&](Worker& worker) { worker.replicate(id, checkpoint); });
}

}  // namespace flow
