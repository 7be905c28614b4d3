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
    std::string interface {};  // of this rank's machine towards the others; "" where there are none
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
  /// Tells the others that this rank has failed, and why.
  void fail(const std::string& why);

 private:
  /// Tells the head where a link to another rank fails while programs run, which use other links.
  void watch(WorkerLink& link, const wire::AttemptName& id);
  void report_progress_on_stop(WorkerLink& link, const wire::AttemptName& id);

  WorkerLink* link_ = nullptr;  // once it is told where this rank is when it is to stop
  std::shared_ptr<Communicator> communicator_;
  std::string gpu_route_;  // empty: no GPUs
  ProcessRendezvous process_rendezvous_;
  std::jthread watch_;  // last: it uses the others
};

/// Reports a failure that another rank brought about. Where that one has ended its own word comes
/// first: this waits for it, and ends with its process when it is heard.
void fail_after_peer_reports(Attempt& attempt, const Error& cause, const std::string& message,
                             const std::string& evidence);

}  // namespace flow
