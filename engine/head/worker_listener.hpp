// The head's listener: creates a RemoteWorker for each session with a worker. Clients connect to
// the same address.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "engine/cluster/session/sessions.hpp"
#include "engine/cluster/transfer/blob_directory.hpp"
#include "engine/cluster/transfer/blob_paths.hpp"
#include "engine/head/remote_worker.hpp"
#include "engine/head/report_receiver.hpp"

namespace flow::cluster {

/// Callbacks to the head's engine. They must not block.
class WorkerListenerUser {
 public:
  virtual ~WorkerListenerUser() = default;
  /// A worker asks to join under the name in `request`. Returns why it is rejected, or "".
  virtual std::string on_join(std::shared_ptr<WorkerConnection> connection,
                              JoinRequest request) = 0;
  virtual void on_draining(WorkerConnection& connection, const std::string& why) = 0;
  virtual void on_gpu_failed(WorkerConnection& connection, const std::string& uuid,
                             const std::string& fault, bool is_dead) = 0;
  virtual void on_gpu_sample(WorkerConnection& connection, GpuSample sample) = 0;
  virtual void on_report(WorkerConnection& connection, ReceivedReport received) = 0;
  virtual void on_rank_address(Report report) = 0;
  /// The last call for a worker that joined, made once. `is_for_good`: it left or its lease
  /// expired; otherwise it may rejoin at once.
  virtual void on_disconnected(WorkerConnection& connection, bool is_for_good,
                               const std::string& why) = 0;
};

struct WorkerListenerOptions {
  SessionOptions session;
  std::string listen;
  std::string state_dir;  // where blobs are stored
  /// Opens blobs that are not under objects/, or null.
  BlobCache::Resolve resolve;
  /// Whether blobs are encrypted in the whole cluster; announced to the workers.
  bool encrypt = false;
  /// Records which worker has which blobs.
  std::shared_ptr<BlobDirectory> blob_directory = std::make_shared<BlobDirectory>();
  /// Returns the user of a client's session; null rejects it. If not set, clients are rejected.
  SessionLink::Accept accept_client;
  /// Receives lines for the log.
  std::function<void(std::string)> on_note;
  /// Milliseconds since the Unix epoch.
  std::function<int64_t()> clock = now_ms;
  /// Without it the caller ticks the sessions.
  bool has_thread = true;
};

class WorkerListener {
 public:
  /// `transport` and `user` must outlive the listener.
  static Result<std::unique_ptr<WorkerListener>> start(Transport& transport,
                                                       const WorkerListenerOptions& options,
                                                       WorkerListenerUser& user);
  ~WorkerListener();  // sends a goodbye to its workers, which continue

  std::string address() const { return listener_->address(); }
  /// See Sessions::tick.
  void tick() { sessions_->tick(); }

 private:
  explicit WorkerListener(const WorkerListenerOptions& options);

  ThreadPool thread_pool_;
  std::shared_ptr<BlobCache> store_;
  const std::shared_ptr<BlobDirectory> directory_;
  const RemoteWorkerOptions worker_options_;
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace flow::cluster
