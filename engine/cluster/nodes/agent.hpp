// The other end of a RemoteWorker: takes the head's orders to this machine's own worker and its
// reports back.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/cluster/nodes/remote_worker.hpp"

namespace flow::cluster {

class Agent {
 public:
  /// Makes the worker whose reports go to the head.
  using MakeWorker = std::function<Result<std::unique_ptr<Worker>>(Worker::OnReport)>;
  /// Tells the head of `host`. `send` may be called until this is destroyed, which ends what runs.
  static Result<std::unique_ptr<Agent>> start(Send send, const core::HostInfo& host,
                                              const MakeWorker& make);

  /// What the head sent. False where that is no message of a head's: the session is to end.
  bool on_message(std::string_view piece);

 private:
  explicit Agent(Send send) : send_(std::move(send)) {}
  bool take(nodes::ToWorker& message);
  bool take_bundle(const wire::LoadBundle& load);
  bool take_order(nodes::Order& in);
  void send(const nodes::FromWorker& message);

  using Environment = std::vector<std::pair<std::string, std::string>>;
  const Send send_;
  std::mutex sending_;
  Joiner joiner_;
  std::map<Digest, std::shared_ptr<const std::string>> bundles_;
  std::map<std::string, std::shared_ptr<const Environment>> environments_;
  std::unique_ptr<Worker> worker_;  // last: its reports use the others
};

}  // namespace flow::cluster
