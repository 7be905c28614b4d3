// A simulated worker of another machine: it joins, keeps what it reported in a spool until that is
// acknowledged, loses its connection, and comes back.
#pragma once
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/engine_attempts.hpp"
#include "tests/sim/engine_durable.hpp"
#include "tests/sim/engine_ranks.hpp"

namespace flow::sim {

class Head;
class SimWorker;

/// What a worker says when it joins.
struct JoinOffer {
  core::WorkerInfo info;
  std::vector<RankOffer> ranks;
  std::string process, spool;
};

/// The line between a head and a worker, in both directions in order. What is under way when it is
/// cut is lost.
class SimConnection final : public WorkerConnection,
                            public std::enable_shared_from_this<SimConnection> {
 public:
  SimConnection(World& world, const DurableState& durable, Head& head, SimWorker& worker);

  // What the engine sends.
  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override;
  void release(uint64_t commit) override;
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId& id, bool kill) override;
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override;
  void ack_logs(size_t) override {}
  void accept_join(uint64_t taken) override;
  void ack_reports(uint64_t number) override;
  void disconnect(const std::string& why) override;

  void send_to_head(std::function<void(Head&)> message);
  /// Both ends find out later. `is_for_good`: the worker has left.
  void cut(const std::string& why, bool is_for_good = false);
  bool is_open() const { return is_open_; }
  GangRanks& ranks() { return ranks_; }

 private:
  void send_to_worker(std::function<void(SimWorker&)> message);
  core::Time arrival(core::Time& last);

  World& world_;
  const DurableState& durable_;
  Head& head_;
  const uint64_t head_start_;  // no other head is at the end of this line
  SimWorker& worker_;
  bool is_open_ = true;
  core::Time last_to_worker_ = 0, last_to_head_ = 0;
  std::vector<std::pair<uint64_t, core::AttemptId>> staged_;  // not released yet
  GangRanks ranks_;
};

class SimWorker {
 public:
  SimWorker(World& world, const DurableState& durable, TaskMemory& memory, Head& head,
            core::WorkerInfo info);

  void start_process();
  /// Ends the process; another one follows, with the same spool or an empty one.
  void die();
  /// Announces that it leaves, and does so.
  void drain();
  void cut_connection();
  /// The capacity that it has when it joins next.
  void set_info(core::WorkerInfo info) { info_ = std::move(info); }
  const core::WorkerInfo& info() const { return info_; }
  const std::string& name() const { return info_.name; }

  // What comes over the connection.
  void on_order(AttemptOrder order, uint64_t commit);
  void on_release(uint64_t commit);
  void on_stop(const core::AttemptId& id) { attempts_->stop(id); }
  void on_saved(const core::AttemptId& id, const std::string& name, bool ok);
  void on_accepted(uint64_t taken);
  void on_ack(uint64_t number);
  void on_disconnected(const SimConnection& connection);

 private:
  struct Spooled {
    uint64_t number;
    Report report;
  };
  void join();
  void join_later(core::Time delay);
  void add_report(Report report);
  void send(const Spooled& entry);
  void forget(uint64_t number);

  World& world_;
  const DurableState& durable_;
  TaskMemory& memory_;
  Head& head_;
  core::WorkerInfo info_;
  uint32_t processes_ = 0, spools_ = 0;
  std::unique_ptr<Attempts> attempts_;  // of this process
  std::shared_ptr<SimConnection> connection_;
  bool is_accepted_ = false, is_draining_ = false;
  uint64_t session_base_ = 0;  // commits of earlier connections are below it
  uint64_t held_release_ = 0;  // came before the join was accepted
  uint64_t commit_last_ = 0;
  std::deque<Spooled> spool_;
  uint64_t last_number_ = 0;
  std::set<RankId> acked_ends_;  // of ranks above 0, in this process
};

}  // namespace flow::sim
