// One seed's world: the real apply and schedule under a fake driver that crashes at every point of
// a turn, workers whose reports come late, twice or after a crash, and clients that try again.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "tests/sim/content.hpp"
#include "tests/sim/random.hpp"

namespace flow::sim {

struct Weather {
  bool crashes = true;      // of the head
  bool bad_network = true;  // reports late, twice, from before a crash
  bool workers = true;      // that join, are cut off, are lost, and come back, with what they run
  bool meddling = true;     // stop and resume, preemption, attempts given back, retries of tasks
};

/// What is submitted: random graphs to one machine and what joins it, or gangs that compete for
/// four workers of one size, which all come back whenever they are lost.
enum class Cast { anything, gangs };

/// What must not depend on the weather.
struct Outcome {
  core::RunStatus status = core::RunStatus::pending;
  Digest result;
  std::map<std::string, std::pair<core::UnitStatus, Digest>> units;
  bool operator==(const Outcome&) const = default;
};

/// Whether the core believes it to run.
bool is_current(const core::State& state, const core::AttemptId& id);
/// Whose end the event tells, or null.
const core::AttemptId* end_of(const core::Event& event);

class Simulation {
 public:
  Simulation(uint64_t seed, const Weather& weather, Cast cast = Cast::anything);
  /// "" or the promise that was broken.
  std::string run();
  const std::map<core::RunId, Outcome>& outcomes() const { return outcomes_; }
  size_t crashes() const { return crash_count_; }
  size_t losses() const { return losses_; }    // of workers
  size_t away() const { return remote_; }      // attempts that ran on one
  size_t adopted() const { return adopted_; }  // that went on when their worker was back
  size_t gangs() const { return gangs_; }      // that ran on several machines
  size_t waits() const { return waits_; }      // of gangs for room that there would be
  size_t grown() const { return grown_; }      // gangs that were asked to begin with more ranks
  size_t drains() const { return drains_; }    // of workers

 private:
  struct Client {
    std::shared_ptr<const Plan> plan;
    bool fail_fast = false, fresh = false, cancels = false;
    bool stopped_once = false, retried_once = false;
    int32_t jobs = 0;
    core::Time starts = 0;
  };
  /// An attempt in a worker: what it will say, in order.
  struct Attempt {
    core::AttemptId id;
    Digest key;
    std::string worker;             // of rank 0, which speaks; "": the head's own machine
    std::set<std::string> workers;  // that still have ranks of it
    bool is_mute = false;           // rank 0 died, and other ranks go on
    uint32_t steps_left = 0;
    bool waits_for_ack = false;
    bool is_service = false;
    bool has_signal = false, expired = false;
    /// What a worker keeps until it knows that it is committed: the end, or the step before.
    std::optional<core::Event> unacknowledged;
    bool has_ended = false;
    bool is_over = false;  // by the journal: its end was committed, or it was given up
  };
  struct Worker {
    core::WorkerInfo info;
    bool is_alive = true;
  };
  struct Message {
    core::Event event;
    std::string from;  // the worker, whose line may be cut; "": nobody's that can be
  };

  bool is_contest() const { return cast_ == Cast::gangs; }
  void choose_ways(Client& client, Random& plans);
  // turn.cc
  void turn(std::vector<core::Event> inbox);
  std::vector<core::Event> next_resize();
  bool step(core::Event event);
  void answer(const core::Command& question);
  void perform(const core::Command& act);
  void commit();
  void crash();
  void recover();
  bool crash_here();
  // attempts.cc
  Attempt make_attempt(const core::Run& run, core::UnitId unit) const;
  void start_attempt(const core::AttemptId& id);
  void go_on(const core::AttemptId& id);
  void end_attempt(const core::AttemptId& id, core::Event report, core::Time delay);
  void stop_attempt(const core::StopAttempt& stop);
  void ack(const core::AckSaved& saved);
  void send_report(core::Event event, core::Time delay, const std::string& from = "");
  void send_late_reports(const core::AttemptId& id);
  bool drop_ranks(const core::AttemptId& id, const std::string& worker);
  bool rank_breaks(const Attempt& attempt);
  void check_ranks_ended();
  // workers.cc
  core::WorkerId worker_id_of(const std::string& worker) const;
  bool is_connected(const std::string& worker) const;
  bool may_lose(core::WorkerId worker) const;
  bool workers_act();
  bool drain(const std::string& worker);
  bool depart();
  bool leave(const std::string& worker, bool dies, bool is_reported);
  bool lines_act();
  std::vector<core::AttemptId> die(const std::string& worker);
  void rejoin(const std::string& worker);
  std::vector<core::AttemptId> held_by(const std::string& worker);
  void resend_reports(const std::string& worker);
  void note_ends();
  void check_adopted(const core::WorkerJoined& event, const core::State& before);
  void check_started_once(const core::AttemptId& id);
  // contest.cc
  void bring_workers();
  void watch_gangs();
  void note_overtaking(const core::Assigned& event);
  // clients.cc
  bool clients_act();
  void check_seen();
  void check_outcomes();
  void broken(const std::string& promise);
  bool all_done() const;

  Random random_;
  Weather weather_;
  const Cast cast_;
  std::map<core::RunId, Client> clients_;
  std::map<core::RunId, Outcome> outcomes_;
  std::string problem_;
  core::Time now_ = 1000;
  size_t crash_count_ = 0, crashes_left_ = 0, meddling_left_ = 0, joins_left_ = 0;
  size_t losses_ = 0, remote_ = 0, adopted_ = 0, gangs_ = 0, waits_ = 0, drains_ = 0, grown_ = 0;

  // The head's memory: lost in a crash.
  core::State state_;
  std::vector<core::Record> batch_;
  std::vector<core::Command> commands_, questions_, acts_;
  std::vector<core::AttemptId> saved_;  // whose checkpoints, in this turn
  std::multimap<core::Time, core::TimerFired> timers_;
  std::multimap<core::Time, std::string> leases_;  // of workers that are awaited
  std::map<Digest, std::pair<Digest, std::shared_ptr<const PlanFragment>>> staged_cache_;
  bool crashed_ = false;

  // The disk.
  std::vector<core::Record> journal_;
  core::State snapshot_;
  size_t snapshot_records_ = 0;
  std::string committed_dump_;
  std::map<Digest, std::pair<Digest, std::shared_ptr<const PlanFragment>>> cache_;

  // The world outside.
  std::multimap<core::Time, Message> network_;
  std::map<std::string, Worker> workers_;
  std::multimap<core::Time, std::string> returns_;     // when a worker next joins
  std::multimap<core::Time, std::string> departures_;  // of those that drain
  std::map<core::AttemptId, Attempt> attempts_;
  std::map<std::pair<core::RunId, Digest>, uint32_t> own_failures_;
  std::set<core::AttemptId> seen_starts_;
  std::set<std::pair<core::AttemptId, std::string>> seen_acks_;
  /// The first gang in order that waits and would fit if nothing ran, whom it has to wait for, and
  /// how many others went before it when those had ended.
  std::optional<core::ReadyHead> waiting_;
  std::set<core::AttemptId> before_;
  size_t overtaken_ = 0;
};

}  // namespace flow::sim
