#include "engine/cluster/nodes/agent.hpp"

#include "engine/worker/slot.hpp"

namespace flow::cluster {

Result<std::unique_ptr<Agent>> Agent::start(Send send, const core::HostInfo& host,
                                            const MakeWorker& make) {
  std::unique_ptr<Agent> agent(new Agent(std::move(send)));
  nodes::FromWorker join;
  put_host(host, *join.mutable_join());
  agent->send(join);
  auto worker = make([self = agent.get()](std::vector<Report> reports) {
    for (Report& report : reports) {
      nodes::FromWorker message;
      put_report(std::move(report), *message.mutable_said());
      self->send(message);
    }
  });
  FLOW_TRY(worker);
  agent->worker_ = std::move(*worker);
  return agent;
}

bool Agent::on_message(std::string_view piece) {
  std::string bytes;
  Joiner::Outcome joined = joiner_.add(piece, bytes);
  if (joined != Joiner::Outcome::whole) return joined == Joiner::Outcome::more;
  nodes::ToWorker message;
  return message.ParseFromString(bytes) && take(message);
}

bool Agent::take(nodes::ToWorker& message) {
  switch (message.kind_case()) {
    case nodes::ToWorker::kBundle:
      return take_bundle(message.bundle());
    case nodes::ToWorker::kEnvironment: {
      Environment environment;
      for (const wire::EnvVar& variable : message.environment().vars())
        environment.emplace_back(variable.name(), variable.value());
      environments_[message.environment().run()] =
          std::make_shared<const Environment>(std::move(environment));
      return true;
    }
    case nodes::ToWorker::kOrder:
      return take_order(*message.mutable_order());
    case nodes::ToWorker::kRelease:
      worker_->release(message.release().commit());
      return true;
    case nodes::ToWorker::kStop: {
      core::AttemptId id = attempt_id(message.stop().id());
      if (message.stop().gentle()) {
        worker_->interrupt(id);
      } else {
        worker_->stop(id, message.stop().kill());
      }
      return true;
    }
    case nodes::ToWorker::kSaved:
      worker_->ack_saved(attempt_id(message.saved().id()), message.saved().name(),
                         message.saved().ok());
      return true;
    case nodes::ToWorker::kTookLogs:
      worker_->took_logs(message.took_logs());
      return true;
    default:
      return false;
  }
}

bool Agent::take_bundle(const wire::LoadBundle& load) {
  Digest digest;
  if (!Digest::from_bytes(load.digest(), digest) || sha256(load.bundle()) != digest) return false;
  bundles_[digest] = std::make_shared<const std::string>(load.bundle());
  return true;
}

bool Agent::take_order(nodes::Order& in) {
  AttemptOrder order;
  if (!get_order(in, order)) return false;
  auto bundle = bundles_.find(order.bundle);
  auto environment = environments_.find(order.id.run);
  if (bundle == bundles_.end() || environment == environments_.end()) return false;
  order.bundle_bytes = bundle->second;
  order.environment = environment->second;
  uint64_t commit = in.start().commit();
  std::vector<AttemptOrder> orders;
  orders.push_back(std::move(order));
  worker_->stage(std::move(orders), commit);
  return true;
}

void Agent::send(const nodes::FromWorker& message) {
  std::lock_guard lock(sending_);
  for (const std::string& piece : pieces_of(message.SerializeAsString())) send_(piece);
}

}  // namespace flow::cluster
