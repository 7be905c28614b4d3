#include "tests/sim/engine_simulation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/sched/sched.hpp"
#include "tests/core/dump.hpp"
#include "tests/sim/engine_plans.hpp"

namespace flow::sim {

namespace {

constexpr uint64_t kFaultySteps = 4'000;
constexpr uint64_t kStepsMax = 60'000;
constexpr core::Time kIdleMaxMs = 60'000;
constexpr size_t kProposalsMax = 1;

DiskFault next_fault(World& world) {
  if (world.strikes(FaultKind::disk, 25))
    return world.random.one_in(2) ? DiskFault::fails : DiskFault::crash_within;
  if (!world.strikes(FaultKind::crash, 120)) return DiskFault::none;
  return world.random.one_in(2) ? DiskFault::crash_before : DiskFault::crash_after;
}

HeadCapacity head_capacity(Random& random, Cast cast) {
  HeadCapacity capacity;
  if (cast == Cast::contest) return capacity;
  capacity.jobs = static_cast<int32_t>(random.below(3));
  if (random.one_in(2)) capacity.gpus = two_gpus("head");
  return capacity;
}

Submission random_submission(Random& random) {
  Submission submission;
  submission.plan = random_plan(random);
  submission.cancels = random.one_in(8);
  submission.fail_fast = random.one_in(8);
  submission.fresh = random.one_in(6);
  submission.jobs = static_cast<int32_t>(random.below(3));
  const std::vector<TaskNode>& nodes = submission.plan->nodes;
  if (random.one_in(6))
    submission.repeats = nodes[random.below(static_cast<uint32_t>(nodes.size()))].name;
  return submission;
}

Submission version_submission(Random& random) {
  Submission submission;
  submission.plan = version_plan(random);
  submission.cancels = random.one_in(8);
  submission.name = kServedName;
  submission.serve_for_ms = 100 + random.below(600);
  return submission;
}

}  // namespace

EngineSimulation::EngineSimulation(uint64_t seed, Cast cast, bool is_calm)
    : world_(seed, is_calm),
      cast_(cast),
      is_calm_(is_calm),
      disk_(
          world_.random, [this] { return next_fault(world_); },
          [this](const Batch& batch) { durable_.add(batch); }),
      reader_(make_disk_store(disk_)),
      fronts_(world_, cast == Cast::rollover),
      durable_(*reader_, observer()),
      head_(world_, disk_, durable_, memory_, head_capacity(world_.random, cast), fronts_),
      while_waiting_([this] { wait_in_call(); }) {
  add_workers();
  add_clients(seed);
  Latch::while_waiting = &while_waiting_;
}

RecordObserver* EngineSimulation::observer() {
  if (cast_ == Cast::contest) return &fairness_;
  return cast_ == Cast::rollover ? &fronts_ : nullptr;
}

void EngineSimulation::add_workers() {
  bool is_contest = cast_ == Cast::contest;
  if (is_contest) {
    world_.add_faults(FaultKind::drain, 2);
    world_.add_faults(FaultKind::worker_death, 2);
  }
  uint32_t workers = is_contest ? kContestWorkers : 1 + world_.random.below(3);
  for (uint32_t i = 1; i <= workers; i++) {
    workers_.push_back(
        std::make_unique<SimWorker>(world_, durable_, memory_, head_, worker_info(i)));
    SimWorker* worker = workers_.back().get();
    world_.after(world_.random.below(60), [worker] { worker->start_process(); });
  }
}

void EngineSimulation::add_clients(uint64_t seed) {
  Random random(seed * 7919 + 1);
  uint32_t clients = 1 + random.below(3);
  if (cast_ == Cast::rollover) clients++;
  for (uint32_t i = 1; i <= clients; i++) {
    Submission submission;
    if (cast_ == Cast::contest) submission.plan = contest_plan(random);
    if (cast_ == Cast::rollover) submission = version_submission(random);
    if (cast_ == Cast::anything) submission = random_submission(random);
    submission.delay_ms = random.below(cast_ == Cast::rollover ? 300 : 100);
    clients_.push_back(
        std::make_unique<SimClient>(world_, disk_, durable_, head_, i, std::move(submission)));
  }
}

// The first worker always has what each task needs.
core::WorkerInfo EngineSimulation::worker_info(uint32_t number) {
  Random& random = world_.random;
  core::WorkerInfo info = contest_worker();
  info.name = fmt::format("w{}", number);
  if (cast_ == Cast::contest) return info;
  info.cpus_milli = static_cast<int32_t>(1000 * (2 + random.below(3)));
  info.memory_bytes = 1 << 30;
  info.gpus = two_gpus(info.name);
  info.custom_resources = {{kLicence, 2000}};
  if (number == 1) return info;
  info.cpus_milli = static_cast<int32_t>(1000 * random.below(4));
  info.memory_bytes = int64_t{random.below(4)} << 28;
  if (random.one_in(2)) info.gpus.clear();
  if (random.one_in(3)) info.custom_resources = {{kLicence, 500}};
  if (random.one_in(3)) info.custom_resources.clear();
  return info;
}

EngineSimulation::~EngineSimulation() { Latch::while_waiting = nullptr; }

std::string EngineSimulation::run() {
  try {
    play();
    check_end();
  } catch (const BrokenPromise& broken) {
    return fmt::format("step {}: {}", world_.step, broken.text);
  }
  return "";
}

void EngineSimulation::play() {
  while (!std::all_of(clients_.begin(), clients_.end(),
                      [](const auto& client) { return client->is_done(); })) {
    guard([this] { step(); });
  }
  // The last stop commands may be under way.
  while (stale_ranks()) guard([this] { step(); });
}

std::optional<core::AttemptId> EngineSimulation::stale_ranks() const {
  for (const auto& worker : workers_)
    if (auto id = worker->stale_ranks()) return id;
  return std::nullopt;
}

/// Does `act`; the head opens the disk again later where its process ends meanwhile.
void EngineSimulation::guard(const std::function<void()>& act) {
  try {
    act();
  } catch (const HeadCrash&) {
    restart(world_.random.one_in(2));
  } catch (const HeadStopped&) {
    world_.note("the engine has stopped");
    restart(world_.random.one_in(2));
  }
}

void EngineSimulation::restart(bool is_power_cut) {
  world_.note(is_power_cut ? "the power is cut" : "the head's process has ended");
  head_.end();
  disk_.restart(is_power_cut);
  if (is_power_cut) durable_.on_power_cut();
  if (world_.random.one_in(4)) {
    std::string wrong = durable_.recovery_difference();
    if (!wrong.empty()) throw BrokenPromise{"a replay has another state: " + wrong};
  }
  if (world_.strikes(FaultKind::blob, 2)) lose_result();
  opens_at_ = world_.now() + world_.random.below(200);
}

// One that a task may still take.
void EngineSimulation::lose_result() {
  std::vector<Digest> results;
  for (const auto& [id, run] : durable_.state().runs) {
    if (core::is_final(run.status)) continue;
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      const core::Unit& u = run.units[unit];
      bool has_result = !u.dropped && u.status == core::UnitStatus::succeeded &&
                        run.node(u.node).kind == NodeKind::task && !core::is_service(run, unit);
      bool may_go = has_result && core::has_consumers(run, unit) &&
                    is_own_result(core::def_of(run, unit)->name);
      if (may_go) results.push_back(u.result);
    }
  }
  if (results.empty()) return;
  const Digest& lost = results[world_.random.below(static_cast<uint32_t>(results.size()))];
  world_.note("the result " + lost.hex() + " is gone");
  disk_.lose(Family::blobs, std::string(lost.view()));
  has_lost_result_ = true;
}

void EngineSimulation::step() {
  if (!head_.is_up() && world_.now() >= opens_at_) return head_.open();
  if (world_.step > kFaultySteps) world_.end_faults();
  if (head_.is_up() && world_.random.one_in(is_calm_ ? 240 : 60)) check_live();
  if (strike_workers()) return;
  if (head_.is_up() && world_.random.one_in(4) && clients_act()) return;
  progress();
}

bool EngineSimulation::strike_workers() {
  SimWorker& worker = *workers_[world_.random.below(static_cast<uint32_t>(workers_.size()))];
  if (world_.strikes(FaultKind::partition, 80)) {
    worker.cut_connection();
    if (world_.random.one_in(4)) change_capacity(worker);
  } else if (world_.strikes(FaultKind::worker_death, 200)) {
    worker.die();
    if (world_.random.one_in(2)) change_capacity(worker);
  } else if (head_.is_up() && world_.strikes(FaultKind::gpu, 200)) {
    fail_gpu();
  } else if (world_.strikes(FaultKind::drain, 200)) {
    worker.drain();
  } else {
    return false;
  }
  return true;
}

// A worker finds it again when it starts again, and a head too.
void EngineSimulation::fail_gpu() {
  auto number = world_.random.below(static_cast<uint32_t>(workers_.size()) + 1);
  SimWorker* worker = number == 0 ? nullptr : workers_[number - 1].get();
  std::string name = worker == nullptr ? "head" : worker->name();
  std::string uuid = two_gpus(name)[world_.random.below(2)].uuid;
  bool is_dead = world_.random.one_in(2);
  world_.note(fmt::format("{} fails{}", uuid, is_dead ? ", and is dead" : ""));
  if (worker == nullptr) return head_.fail_gpu(uuid, is_dead);
  worker->fail_gpu(uuid, is_dead);
  world_.after(200 + world_.random.below(500), [worker] { worker->die(); });
}

void EngineSimulation::change_capacity(SimWorker& worker) {
  auto number = static_cast<uint32_t>(std::stoul(worker.name().substr(1)));
  worker.set_info(worker_info(number));
}

bool EngineSimulation::clients_act() {
  auto first = world_.random.below(static_cast<uint32_t>(clients_.size()));
  for (size_t i = 0; i < clients_.size(); i++)
    if (clients_[(first + i) % clients_.size()]->act()) return true;
  return false;
}

// A call of the engine waits for a turn: the world goes on meanwhile, without other calls.
void EngineSimulation::wait_in_call() {
  if (!strike_workers()) progress();
}

void EngineSimulation::progress() {
  if (++world_.step > kStepsMax) {
    if (auto id = stale_ranks())
      throw BrokenPromise{"ranks of a gang that has ended were not told to stop: " + text_of(*id)};
    std::string runs;
    for (const auto& client : clients_) runs += "; " + client->text();
    throw BrokenPromise{"not all runs end though nothing goes wrong any more" + runs + "\n" +
                        core::dump(durable_.state())};
  }
  bool has_acted = world_.random.one_in(2) && head_.is_up() && head_.act();
  has_acted = has_acted || world_.run_due() || (head_.is_up() && head_.act());
  if (has_acted) {
    idle_ms_ = 1;
    return;
  }
  world_.pass(idle_ms_);
  idle_ms_ = std::min(2 * idle_ms_, kIdleMaxMs);
}

// What is in the inbox comes first: an event that shares the turn would not be durable yet.
void EngineSimulation::check_live() {
  while (head_.loop().run_turn()) {
  }
  head_.loop().inspect([this](const core::State& state, InputResolver&) {
    if (head_.loop().stopped_by()) return;  // the write before this failed
    std::string wrong = difference(durable_.state(), state);
    if (!wrong.empty())
      throw BrokenPromise{"the durable records have another state than the live one: " + wrong};
    if (!core::schedule(state, kProposalsMax).empty())
      throw BrokenPromise{"a turn ended though something could start"};
    if (cast_ == Cast::rollover) fronts_.check(state);
    head_.check_ranks();
  });
}

void EngineSimulation::check_end() {
  world_.end_faults();
  for (const auto& client : clients_) client->check_kept();
  restart(true);
  std::string wrong = durable_.recovery_difference();
  if (!wrong.empty()) throw BrokenPromise{"a replay has another state: " + wrong};
  for (const auto& client : clients_) client->check_kept();
}

size_t EngineSimulation::recomputations() const {
  size_t sum = 0;
  for (const auto& client : clients_) sum += client->recomputations();
  return sum;
}

std::map<core::RunId, Outcome> EngineSimulation::outcomes() const {
  std::map<core::RunId, Outcome> outcomes;
  for (const auto& client : clients_) {
    Outcome& outcome = outcomes[client->id()] = client->outcome();
    outcome.is_whole = !has_lost_result_;
  }
  return outcomes;
}

std::string EngineSimulation::trace() const {
  std::string text;
  for (const std::string& line : world_.trace()) text += line + "\n";
  return text;
}

}  // namespace flow::sim
