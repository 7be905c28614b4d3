#include "engine/head/remote_worker.hpp"

#include <algorithm>
#include <utility>

#include "engine/worker/slot.hpp"

namespace flow::cluster {

RemoteWorker::RemoteWorker(Send send, RemoteWorkerCallbacks callbacks,
                           std::function<void(const std::string&)> disconnect,
                           RemoteWorkerOptions options)
    : send_(std::move(send)),
      callbacks_(std::move(callbacks)),
      disconnect_(std::move(disconnect)),
      options_(std::move(options)) {}

bool RemoteWorker::on_message(std::string_view chunk) {
  std::string bytes;
  MessageAssembler::Outcome assembled = assembler_.add(chunk, bytes);
  if (assembled != MessageAssembler::Outcome::whole)
    return assembled == MessageAssembler::Outcome::more;
  worker_protocol::FromWorker message;
  if (!message.ParseFromString(bytes) || message.has_join() == has_joined_) return false;
  switch (message.kind_case()) {
    case worker_protocol::FromWorker::kJoin: {
      JoinRequest request;
      if (!get_join_request(message.join(), request)) return false;
      clock_lag_ms_ = request.now == 0 ? 0 : options_.clock() - request.now;
      has_joined_ = callbacks_.on_join(std::move(request));
      return has_joined_;
    }
    case worker_protocol::FromWorker::kReport:
      return on_report(*message.mutable_report());
    case worker_protocol::FromWorker::kDraining:
      callbacks_.on_draining(message.draining());
      return true;
    case worker_protocol::FromWorker::kGpuFailed: {
      const worker_protocol::GpuFailed& failed = message.gpu_failed();
      if (failed.fault().empty() || failed.fault().size() > kFaultBytesMax) return false;
      callbacks_.on_gpu_failed(failed.uuid(), failed.fault(), failed.is_dead());
      return true;
    }
    case worker_protocol::FromWorker::kGpuSample: {
      GpuSample sample;
      if (!get_gpu_sample(message.gpu_sample(), sample)) return false;
      callbacks_.on_gpu_sample(std::move(sample));
      return true;
    }
    case worker_protocol::FromWorker::kRankAddressReport: {
      wire::FromExecutor executor_message;
      *executor_message.mutable_rank_address_report() =
          std::move(*message.mutable_rank_address_report());
      Report report{};
      if (!executor_message.rank_address_report().has_id() || !to_report(executor_message, report))
        return false;
      callbacks_.on_rank_address(std::move(report));
      return true;
    }
    case worker_protocol::FromWorker::kInventoryDelta: {
      BlobInventoryDelta delta;
      if (!get_inventory_delta(message.inventory_delta(), delta)) return false;
      callbacks_.on_inventory_delta(delta);
      return true;
    }
    case worker_protocol::FromWorker::kBlobMessage:
      return callbacks_.on_blob_message(message.blob_message());
    default:
      return false;
  }
}

bool RemoteWorker::on_report(worker_protocol::ReportEnvelope& envelope) {
  Report report{};
  if (envelope.number() <= last_number_ || !get_report(envelope, report)) return false;
  last_number_ = envelope.number();
  if (is_final_report(report) && report.at != 0) report.at += clock_lag_ms_;
  callbacks_.on_report(std::move(report), last_number_);
  return true;
}

void RemoteWorker::stage(std::vector<AttemptOrder> orders, uint64_t commit) {
  std::lock_guard lock(sending_);
  for (AttemptOrder& order : orders) {
    // Without the worker's process a replica is cut off from its front, and another one takes its
    // place once the worker is lost. Until then a new process of the worker may adopt it.
    order.front_lease_ms = std::min(order.front_lease_ms, options_.replica_lease_ms);
    send_ahead(order);
    callbacks_.on_order(order);
    worker_protocol::ToWorker message;
    put_order(order, commit, *message.mutable_order());
    send_locked(message);
  }
}

// A resumed run may have another environment.
bool RemoteWorker::has_environment(const AttemptOrder& order) const {
  auto found = environments_.find(order.id.run);
  auto known = found == environments_.end() ? nullptr : found->second.lock();
  return known && (known == order.environment || *known == *order.environment);
}

void RemoteWorker::send_ahead(const AttemptOrder& order) {
  if (order.bundle_bytes && bundles_.add(order.id.run, order.bundle)) {
    worker_protocol::ToWorker message;
    message.mutable_bundle()->set_digest(std::string(order.bundle.view()));
    message.mutable_bundle()->set_bundle(*order.bundle_bytes);
    send_locked(message);
  }
  if (order.environment && !has_environment(order)) {
    environments_[order.id.run] = order.environment;
    worker_protocol::ToWorker message;
    message.mutable_environment()->set_run(order.id.run);
    for (const auto& [name, value] : *order.environment) {
      wire::EnvVar& variable = *message.mutable_environment()->add_vars();
      variable.set_name(name);
      variable.set_value(value);
    }
    send_locked(message);
  }
}

void RemoteWorker::release(uint64_t commit) {
  worker_protocol::ToWorker message;
  message.mutable_release()->set_commit(commit);
  send(message);
}

void RemoteWorker::exchange_addresses(const core::AttemptId& id,
                                      const std::vector<std::string>& rank_addresses) {
  worker_protocol::ToWorker message;
  *message.mutable_peers()->mutable_id() = wire_name(id);
  for (const std::string& each : rank_addresses) message.mutable_peers()->add_rank_addresses(each);
  send(message);
}

void RemoteWorker::stop(const core::AttemptId& id, bool kill) { send_stop(id, false, kill); }
void RemoteWorker::interrupt(const core::AttemptId& id) { send_stop(id, true, false); }
void RemoteWorker::kill_after_flush(const core::AttemptId& id) { send_stop(id, true, true); }

void RemoteWorker::send_stop(const core::AttemptId& id, bool gentle, bool kill) {
  worker_protocol::ToWorker message;
  *message.mutable_stop()->mutable_id() = wire_name(id);
  message.mutable_stop()->set_gentle(gentle);
  message.mutable_stop()->set_kill(kill);
  send(message);
}

void RemoteWorker::ack_saved(const core::AttemptId& id, const std::string& name, bool ok) {
  worker_protocol::ToWorker message;
  *message.mutable_saved()->mutable_id() = wire_name(id);
  message.mutable_saved()->set_name(name);
  message.mutable_saved()->set_ok(ok);
  send(message);
}

void RemoteWorker::replicate(const core::AttemptId& id, const Digest& checkpoint) {
  worker_protocol::ToWorker message;
  *message.mutable_replica()->mutable_id() = wire_name(id);
  message.mutable_replica()->set_digest(std::string(checkpoint.view()));
  send(message);
}

// Later orders of this run are sent with its bundle and environment again.
void RemoteWorker::forget(const core::RunId& run) {
  worker_protocol::ToWorker message;
  message.set_forget(run);
  std::lock_guard lock(sending_);
  bundles_.forget(run);
  environments_.erase(run);
  send_locked(message);
}

void RemoteWorker::set_front_port(const std::string& front, uint16_t port) {
  worker_protocol::ToWorker message;
  message.mutable_front_port()->set_front(front);
  message.mutable_front_port()->set_port(port);
  send(message);
}

void RemoteWorker::accept_join(uint64_t acked) {
  worker_protocol::ToWorker message;
  message.mutable_join_accepted()->set_acked(acked);
  message.mutable_join_accepted()->set_encrypt(options_.encrypt);
  send(message);
}

void RemoteWorker::ack_reports(uint64_t number) {
  worker_protocol::ToWorker message;
  message.set_report_ack(number);
  send(message);
}

void RemoteWorker::send_blob_message(std::string_view bytes) {
  worker_protocol::ToWorker message;
  message.set_blob_message(std::string(bytes));
  send(message);
}

void RemoteWorker::send(const worker_protocol::ToWorker& message) {
  std::lock_guard lock(sending_);
  send_locked(message);
}

// All chunks of one message are sent before those of the next.
void RemoteWorker::send_locked(const worker_protocol::ToWorker& message) {
  for (const std::string& chunk : split_message(message.SerializeAsString())) send_(chunk);
}

}  // namespace flow::cluster
