// A rank and the others of its gang: how they meet before its function runs, and part after it.
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
  /// Where the processes of a gang's ranks may meet: free a moment ago on rank 0's machine.
  struct ProcessRendezvous {
    std::string host = "127.0.0.1";
    uint16_t port = 0;
    std::string interface {};  // of this rank's machine towards the others; "" where there are none
  };

  ~Gang();

  /// Null where the attempt has one rank. Blocks until all ranks are there. The Error of kind
  /// interrupted: it was asked to stop before that.
  static Result<std::unique_ptr<Gang>> rendezvous(Attempt& attempt);
  /// Says on the log by which road tensors on GPUs go, once for all ranks.
  void log_gpu_route(Attempt& attempt) const;

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  const ProcessRendezvous& process_rendezvous() const { return process_rendezvous_; }
  /// Of an elastic gang that has one rank.
  static ProcessRendezvous single_rank_rendezvous();
  /// After the function, which came to its end: waits until that of every rank has.
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
