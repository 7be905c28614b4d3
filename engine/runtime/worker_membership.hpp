// Workers of other machines, as the state knows them: they join, disconnect, drain, and are lost.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/hardware.hpp"
#include "engine/core/core.hpp"
#include "engine/runs/shared_machines.hpp"
#include "engine/runtime/gang_supervisor.hpp"
#include "engine/runtime/turn_input.hpp"

namespace flow {

/// Of the worker of another machine with this name; none if the state knows none.
std::optional<core::WorkerId> worker_id_of(const core::State& state, const std::string& name);
/// Names of the workers that may rejoin; with `at_work` those of them that run an attempt, by the
/// state's account.
std::vector<std::string> disconnected_workers(const core::State& state, bool at_work = false);

/// A worker of another machine that asks to join.
struct WorkerJoin {
  core::WorkerInfo worker;
  std::vector<RankOffer> ranks{};
  bool is_restarted = false;  // as WorkerJoined::is_restarted
  Hardware machine{};
};

/// Other threads use the first functions, turns use the others.
class WorkerMembership {
 public:
  struct Hooks {
    std::function<void(TurnInput)> post;
    /// Within a turn: records the event if the core admits it.
    std::function<void(core::Event)> record;
    /// When outcomes are delivered: called after the effects of the same commit.
    std::function<void(std::function<void()>)> after_effects;
  };
  /// `has_notes`: whether workers may come from elsewhere and are warned about what they share. The
  /// others outlive it, and the inputs that it posts.
  WorkerMembership(const core::State& state, GangSupervisor& gangs, bool has_notes, Hooks hooks,
                   Hardware own = own_hardware())
      : state_(state),
        gangs_(gangs),
        has_notes_(has_notes),
        hooks_(std::move(hooks)),
        shared_machines_(std::move(own)) {}

  // On any thread: each posts an input. A name that the turn does not know is ignored.
  /// `decided` is called once: after the commit and its effects, or with false if the worker is
  /// rejected.
  void join(WorkerJoin join, std::function<void(bool admitted)> decided);
  void disconnect(const std::string& name, const std::string& why);
  void drain(const std::string& name, const std::string& why);
  void fail_gpu(const std::string& name, const std::string& uuid, const std::string& fault,
                bool is_dead);
  /// `has_died`: its process has ended.
  void lose(const std::string& name, const std::string& why, bool has_died = false);
  /// This many workers are to join in all.
  void announce(uint32_t workers);

  // Within a turn.
  /// A sentence about what the worker shares with another one, or "".
  std::string note_of(const std::string& name) const;
  /// Records the loss of workers that waited until gangs had ended. Once per turn.
  void lose_waiting();

 private:
  struct Loss {
    std::string why;
    bool has_died = false;
  };
  /// A rank that the state assigns to a worker, and that the worker does not offer.
  struct MissingRank {
    RankId rank;
    std::string how;  // how the worker rejoined, as a clause
  };
  struct Offer {
    std::vector<core::AttemptId> attempts;  // for WorkerJoined
    std::vector<MissingRank> missing;       // at most one per attempt; these attempts are to end
  };
  void post(std::function<void()> callback);
  /// The worker's number is found in the turn: the input before may be the one that adds it.
  void post_event(const std::string& name, std::function<core::Event(core::WorkerId)> event_of);
  bool record_join(WorkerJoin join);
  void handle_loss(const std::string& name, const std::string& why, bool has_died);
  void record_loss(core::WorkerId worker, const Loss& loss);
  Offer compare_offer(const WorkerJoin& join) const;
  void print_new_note(const std::string& name);
  void assign_orphaned_gpus();

  const core::State& state_;
  GangSupervisor& gangs_;
  const bool has_notes_;
  const Hooks hooks_;
  SharedMachines shared_machines_;
  std::map<std::string, std::string> printed_notes_;  // by name, of workers that are not lost
  /// Workers that are lost when no gang with a rank there is still being finalized. Entries leave
  /// then, or when the worker rejoins.
  std::map<std::string, Loss> waiting_losses_;
};

}  // namespace flow
