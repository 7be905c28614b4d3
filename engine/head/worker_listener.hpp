// The head's side of its workers: listens, and has a RemoteWorker for each session with one. Its
// clients come to the same place.
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

/// What the head's engine is told, on threads that it must not block.
class WorkerListenerUser {
 public:
  virtual ~WorkerListenerUser() = default;
  /// A worker asks to join, under the name in `request`. Why it can't, or "".
  virtual std::string on_join(std::shared_ptr<WorkerConnection> connection,
                              JoinRequest request) = 0;
  virtual void on_draining(WorkerConnection& connection, const std::string& why) = 0;
  virtual void on_gpu_failed(WorkerConnection& connection, const std::string& uuid,
                             const std::string& fault, bool is_dead) = 0;
  virtual void on_report(WorkerConnection& connection, ReceivedReport received) = 0;
  virtual void on_rank_address(Report report) = 0;
  /// Once, last, of one that joined. `is_for_good`: it left, or nothing was heard of it for so long
  /// that it counts as lost; else it may be back at once.
  virtual void on_disconnected(WorkerConnection& connection, bool is_for_good,
                               const std::string& why) = 0;
};

struct WorkerListenerOptions {
  SessionOptions session;
  std::string listen;
  std::string state_dir;  // where content comes to
  /// Of content that is not under objects/, or null.
  BlobCache::Resolve resolve;
  /// Content goes sealed between all of the cluster: its workers hear it from here.
  bool encrypt = false;
  /// Which worker has what is noted there.
  std::shared_ptr<BlobDirectory> blob_directory = std::make_shared<BlobDirectory>();
  /// Gives the user of a client's session; null ends it. Without this there are no clients.
  SessionLink::Accept accept_client;
  /// Told of what somebody should read in a log.
  std::function<void(std::string)> on_note;
};

class WorkerListener {
 public:
  /// `transport` and `user` outlive it.
  static Result<std::unique_ptr<WorkerListener>> start(Transport& transport,
                                                       const WorkerListenerOptions& options,
                                                       WorkerListenerUser& user);
  ~WorkerListener();  // says goodbye to its workers, which go on

  std::string address() const { return listener_->address(); }

 private:
  explicit WorkerListener(const WorkerListenerOptions& options);

  ThreadPool thread_pool_;
  std::shared_ptr<BlobCache> store_;
  const std::shared_ptr<BlobDirectory> directory_;
  const bool encrypt_;
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace flow::cluster
