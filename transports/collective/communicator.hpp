// The queue of one communicator's calls, and who runs them: whoever calls run() where nothing is
// under way, so that no thread has to be woken; else a thread of its own, one call after the other.
// Sends and receives move beside them, in whatever wait there is.
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

/// One call. Finished once, by whoever runs.
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

/// What a communicator is made of. The wire ends first: it tells the core.
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
  // By whoever runs:
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
  uint64_t number_ = 0;       // of collectives; whoever runs
  bool is_leaving_ = false;   // whoever runs
  bool has_ended_ = false;    // and has no message under way; whoever runs
  std::list<Shared> posted_;  // sends and receives on their lanes; whoever runs

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_running_ = false;  // somebody is
  bool stopping_ = false;
  std::deque<Shared> queue_;  // collectives
  std::vector<Shared> messages_to_post_;
  std::vector<uint64_t> sent_, received_;  // by rank
  std::atomic<int> new_count_{0};          // in queue_ and messages_to_post_, seen unlocked
  std::atomic<int> posted_count_{0};
  std::atomic<int> unfinished_{0};  // started, and nobody has been told yet how they ended
  std::thread thread_;
};

}  // namespace flow::collective
