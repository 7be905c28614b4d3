// A worker on another machine, as the head sees it: a Worker whose orders and reports are messages.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/environment_variables.hpp"
#include "engine/cluster/session/session_link.hpp"
#include "engine/cluster/transfer/bundle_users.hpp"
#include "engine/cluster/transfer/worker_messages.hpp"

namespace flow::cluster {

/// Callbacks of a RemoteWorker, on the thread that calls on_message.
struct RemoteWorkerCallbacks {
  /// Called once, before any report. Returns false to reject the join; nothing is accepted then.
  std::function<bool(JoinRequest)> on_join;
  /// Reports with increasing numbers.
  std::function<void(Report, uint64_t number)> on_report;
  /// The worker drains.
  std::function<void(const std::string& why)> on_draining;
  std::function<void(const std::string& uuid, const std::string& fault, bool is_dead)>
      on_gpu_failed;
  std::function<void(GpuSample)> on_gpu_sample;
  /// The address of a gang's rank: a report without a number, which may be repeated.
  std::function<void(Report)> on_rank_address;
  /// An order is being sent.
  std::function<void(const AttemptOrder&)> on_order;
  std::function<void(const BlobInventoryDelta&)> on_inventory_delta;
  /// A message of the blob transfer. Returns false if it is invalid.
  std::function<bool(std::string_view message)> on_blob_message;
};

struct RemoteWorkerOptions {
  bool encrypt = false;                     // blobs
  std::function<int64_t()> clock = now_ms;  // since the Unix epoch
  /// The longest time for which a replica of a service outlives the worker's process.
  int64_t replica_lease_ms = INT64_MAX;
};

/// Serves one session.
class RemoteWorker final : public WorkerConnection {
 public:
  /// `disconnect` ends the session.
  RemoteWorker(Send send, RemoteWorkerCallbacks callbacks,
               std::function<void(const std::string& why)> disconnect,
               RemoteWorkerOptions options = {});

  /// Handles a chunk from the worker. Returns false if it is invalid; the caller then ends the
  /// session.
  bool on_message(std::string_view chunk);
  void send_blob_message(std::string_view message);

  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override;
  void release(uint64_t commit) override;
  void exchange_addresses(const core::AttemptId& id,
                          const std::vector<std::string>& rank_addresses) override;
  void stop(const core::AttemptId& id, bool kill) override;
  void interrupt(const core::AttemptId& id) override;
  void kill_after_flush(const core::AttemptId& id) override;
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override;
  void replicate(const core::AttemptId& id, const Digest& checkpoint) override;
  void forget(const core::RunId& run) override;
  void set_front_port(const std::string& front, uint16_t port) override;
  void ack_logs(size_t) override {}  // ack_reports acknowledges them
  void accept_join(uint64_t acked) override;
  void ack_reports(uint64_t number) override;
  void disconnect(const std::string& why) override { disconnect_(why); }

 private:
  bool on_report(worker_protocol::ReportEnvelope& envelope);
  void send_stop(const core::AttemptId& id, bool gentle, bool kill);
  void send(const worker_protocol::ToWorker& message);
  void send_locked(const worker_protocol::ToWorker& message);
  bool has_environment(const AttemptOrder& order) const;
  void send_ahead(const AttemptOrder& order);

  const Send send_;
  const RemoteWorkerCallbacks callbacks_;
  const std::function<void(const std::string&)> disconnect_;
  const RemoteWorkerOptions options_;
  std::mutex sending_;
  // Bundles that the worker has for runs that have not ended; entries leave in forget().
  BundleUsers bundles_;
  std::map<core::RunId, std::weak_ptr<const EnvironmentVariables>> environments_;
  MessageAssembler assembler_;
  bool has_joined_ = false;
  uint64_t last_number_ = 0;
  core::Time clock_lag_ms_ = 0;  // difference to our clock
};

}  // namespace flow::cluster
