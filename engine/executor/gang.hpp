// A rank's view of its gang: the rendezvous before its function runs and the common end after it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "engine/executor/attempt.hpp"
#include "flow/collective.hpp"

namespace flow {

class Gang {
 public:
  /// An address for the rendezvous of the ranks' own processes: a port that was free on rank 0's
  /// machine.
  struct ProcessRendezvous {
    std::string host = "127.0.0.1";
    uint16_t port = 0;
    // The address of this rank's machine that the others can reach; "" if there are no others.
    std::string interface {};
  };

  ~Gang();

  /// Blocks until all ranks are connected. Null for an attempt with one rank. An error of kind
  /// `interrupted` means that the attempt was asked to stop.
  static Result<std::unique_ptr<Gang>> rendezvous(Attempt& attempt);
  /// Logs once for all ranks which transport carries GPU tensors.
  void log_gpu_route(Attempt& attempt) const;

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  const ProcessRendezvous& process_rendezvous() const { return process_rendezvous_; }
  /// For an elastic gang that has one rank.
  static ProcessRendezvous single_rank_rendezvous();
  /// Called after the rank's function returned: waits until it has returned on every rank.
  Status leave_together(Attempt& attempt, bool waits = false);
  /// Notifies the other ranks that this rank has failed, and of the cause.
  void fail(const std::string& why);

 private:
  /// Reports failed links between ranks to the head while external programs run, because these do
  /// not use the communicator.
  void watch(WorkerLink& link, const wire::AttemptName& id);
  void report_progress_on_stop(WorkerLink& link, const wire::AttemptName& id);

  WorkerLink* link_ = nullptr;  // set once the position is to be reported on a stop
  std::shared_ptr<Communicator> communicator_;
  std::string gpu_route_;  // empty: no GPUs
  ProcessRendezvous process_rendezvous_;
  std::jthread watch_;  // last: it uses the other members
};

/// Reports a failure that another rank caused. If that rank has ended, its own report comes first:
/// this waits for it, and this process is killed when it arrives.
void fail_after_peer_reports(Attempt& attempt, const Error& cause, const std::string& message,
                             const std::string& evidence);

}  // namespace flow
