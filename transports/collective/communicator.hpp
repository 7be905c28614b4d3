// The queue of a communicator's calls. The thread that calls run() executes its call itself where
// nothing is running, so that no thread has to be woken; otherwise a thread of the communicator
// executes the calls in order. Sends and receives progress during every wait.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transports/collective/operations.hpp"

namespace flow::collective {

/// One call. Finished once, by the thread that executes calls.
class Operation final : public CollectiveWork {
 public:
  explicit Operation(const CollectiveCall& call) : call(call) {}
  bool is_done() const override;
  Status wait() override;
  void finish(Status status);

  const CollectiveCall call;
  Transfer transfer;  // of a send or a receive

 private:
  mutable std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  Status status_;
};

/// The parts that a communicator owns. The links are destroyed first, because they report to the
/// state.
struct CommunicatorParts {
  std::unique_ptr<CommunicatorState> state;
  std::unique_ptr<RankLinks> rank_links;  // null: all ranks are on this node
  Topology topology;
};

class GangCommunicator final : public Communicator {
 public:
  explicit GangCommunicator(CommunicatorParts parts);
  ~GangCommunicator() override;

  int rank() const override { return state_.rank(); }
  int ranks() const override { return state_.ranks(); }
  Status run(const CollectiveCall& call) override;
  std::shared_ptr<CollectiveWork> start(const CollectiveCall& call) override;
  Status state() const override;
  std::optional<RankProgress> rank_progress() const override { return state_.rank_progress(); }
  void abort(const std::string& reason) override;
  std::string description() const override;

 private:
  using Shared = std::shared_ptr<Operation>;

  Status check_call(const CollectiveCall& call) const;
  void submit(const Shared& operation);
  void number(Operation& operation);
  bool has_work() const;
  bool is_idle() const { return !is_running_ && queue_.empty(); }
  void finish(Operation& operation, Status status);
  // Called by the thread that executes calls:
  Status execute(const CollectiveCall& call);
  void post_messages();
  void progress();
  void run_thread();
  void run_messages();
  const Shared& next_message() const;
  void finish_all();

  CommunicatorParts parts_;
  CommunicatorState& state_;
  Messages messages_;
  Operations operations_;
  uint64_t number_ = 0;       // number of collectives; executing thread only
  bool is_leaving_ = false;   // executing thread only
  bool has_ended_ = false;    // and no message is in flight; executing thread only
  std::list<Shared> posted_;  // sends and receives on their channels; executing thread only

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_running_ = false;  // a thread is executing calls
  bool stopping_ = false;
  std::deque<Shared> queue_;  // collectives
  std::vector<Shared> messages_to_post_;
  std::vector<uint64_t> sent_, received_;  // by rank
  std::atomic<int> new_count_{0};          // of queue_ and messages_to_post_; read without the lock
  std::atomic<int> posted_count_{0};
  std::atomic<int> unfinished_{0};  // started, and their callback has not run yet
  std::thread thread_;
};

}  // namespace flow::collective
