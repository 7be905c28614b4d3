// Nodes that Slurm gives to this head: asks for them, says what becomes of them, and gives them
// back.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/cluster/slurm/pool.hpp"
#include "engine/cluster/slurm/request.hpp"
#include "engine/head/slurm_step.hpp"

namespace flow {

/// What the head is asked and told, on the thread of the nodes.
struct NodesUser {
  std::function<slurm::View()> look;
  std::function<void(const std::string& node)> drain;  // nothing new is to go there
  std::function<void(const std::string& text)> note;   // for people
  std::function<void(const std::string& text)> status;
  std::function<void()> no_more;                  // no other node will be had
  std::function<void(const Error& why)> give_up;  // no node is there, and none will be
};

class SlurmNodes {
 public:
  /// `inside`: the job whose nodes are used; "" asks for others.
  static Result<std::unique_ptr<SlurmNodes>> start(const SlurmOptions& options,
                                                   const slurm::Place& place,
                                                   const std::string& inside, NodesUser user);
  ~SlurmNodes();  // gives the nodes back

 private:
  SlurmNodes(const SlurmOptions& options, slurm::Place place, std::string inside, NodesUser user);
  void take_up_jobs();
  /// The workers of the allocation that this process is in.
  void keep_step();
  void loop();
  void turn();
  void poll_jobs();
  void ask(int32_t nodes);
  /// False, and a note, where one of them may still be there.
  bool cancel(const std::vector<uint64_t>& jobs, int64_t within_ms);
  void give_back(const std::vector<uint64_t>& jobs, int64_t within_ms);
  void tell();
  std::string job_file(uint64_t job) const;

  const SlurmOptions options_;
  const slurm::Place place_;
  const std::string inside_;
  const NodesUser user_;
  slurm::Pool pool_;
  std::unique_ptr<SlurmStep> step_;
  uint32_t steps_ended_ = 0;  // in a row, each soon after it began
  int64_t step_at_ms_ = 0;
  int64_t poll_at_ms_ = 0, changed_at_ms_ = 0;
  std::string squeue_problem_, told_status_;
  bool has_given_up_ = false, has_told_no_more_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool quit_ = false;
  std::thread thread_;
};

}  // namespace flow
