// A worker of another machine, as the head has it: a Worker like its own, whose orders go out as
// messages and whose reports come in as such.
#pragma once
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cluster/nodes/messages.hpp"

namespace flow::cluster {

/// Sends one message of a session. Thread-safe, does not block. What fails ends the session, which
/// is told elsewhere.
using Send = std::function<void(std::string_view message)>;

class RemoteWorker final : public Worker {
 public:
  using OnJoin = std::function<void(core::HostInfo)>;
  /// `on_join` is called once, before any report; both on the thread that calls on_message.
  RemoteWorker(Send send, OnJoin on_join, OnReport on_report);

  /// What the peer sent. False where that is no message of a worker's: the session is to end.
  bool on_message(std::string_view piece);

  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override;
  void release(uint64_t commit) override;
  void stop(const core::AttemptId& id, bool kill) override;
  void interrupt(const core::AttemptId& id) override;
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override;
  void took_logs(size_t cost) override;

 private:
  void send_stop(const core::AttemptId& id, bool gentle, bool kill);
  void send(const nodes::ToWorker& message);
  void send_locked(const nodes::ToWorker& message);
  void send_ahead(const AttemptOrder& order);

  const Send send_;
  const OnJoin on_join_;
  const OnReport on_report_;
  std::mutex sending_;
  std::set<Digest> bundles_;  // that the peer has
  std::set<std::string> environments_;
  Joiner joiner_;
  bool joined_ = false;
};

}  // namespace flow::cluster
