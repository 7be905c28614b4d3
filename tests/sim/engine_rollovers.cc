#include "tests/sim/engine_rollovers.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "engine/core/rollover.hpp"
#include "tests/sim/engine_plans.hpp"

namespace flow::sim {

namespace {

constexpr uint32_t kAnswerMsMax = 60;
constexpr uint32_t kRequestsMax = 30;
constexpr uint32_t kInfraRetries = 40;  // more than faults strike
constexpr uint32_t kLoadMsMax = 10;     // between changes of the load
constexpr uint32_t kLoadsMax = 12;      // of a run

bool serves(const core::Run& run) {
  return run.status == core::RunStatus::serving && !run.ending && !run.cancelling && !run.stopping;
}

}  // namespace

std::shared_ptr<const Plan> version_plan(Random& random) {
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "versions";
  plan->defs.resize(3);
  for (TaskDef& def : plan->defs) {
    def.retry.max = kOwnFailuresMax;
    def.retry.infra = kInfraRetries;
    def.retry.backoff_ms = 5;
    def.retry.cap_ms = 20;
  }
  plan->defs[0].name = "train";
  TaskDef& service = plan->defs[1];
  service.name = "serve";
  service.kind = TaskKind::service;
  CanarySpec& canary = service.service.canary;
  uint32_t kind = random.below(6);
  if (kind > 0)
    canary.percents = kind == 1 ? std::vector<uint32_t>{100} : std::vector<uint32_t>{20, 60, 100};
  canary.every_ms = 1 + random.below(30);
  canary.min_requests = 5;
  canary.max_error_rate = 0.5;
  if (kind > 0 && random.one_in(2)) canary.gate = kGateTask;
  plan->defs[2].name = kGateTask;
  service.service.rolls_by_replacing = random.one_in(6);
  if (random.one_in(2)) service.service.scaling.max = 3;
  plan->nodes.resize(2);
  plan->nodes[0].name = "train";
  plan->nodes[0].args = Value::list({Value(int64_t{random.below(1000)})});
  plan->nodes[1].name = "digits";
  plan->nodes[1].def = 1;
  plan->nodes[1].args = Value::list({Value(Ref{0, {}})});
  plan->result = Value::list({Value(Ref{1, {}})});
  return plan;
}

void SeenRollovers::add(const SeenRollovers& other) {
  done += other.done;
  reverted += other.reverted;
  interrupted += other.interrupted;
  alone += other.alone;
  passed += other.passed;
  refused += other.refused;
}

/// Carries out orders in their order, as the product's thread does.
class SimFronts::Control final : public FrontControl {
 public:
  Control(SimFronts& fronts, ServiceFronts::Post post) : fronts_(fronts), post_(std::move(post)) {}
  ~Control() override { quit(); }

  void give(FrontOrder order) override {
    orders_.push_back(std::move(order));
    fronts_.under_way_++;
    if (orders_.size() == 1) next_later();
  }
  void watch(const core::RunId& run, std::vector<ScaledService> services) override {
    for (const ScaledService& service : services) change_load(run, service);
  }
  void quit() override {
    *is_alive_ = false;
    fronts_.under_way_ -= orders_.size();
    orders_.clear();
  }

 private:
  /// Again and again. What it posts may be refused: meanwhile the run may have ended, or its
  /// replicas have another number.
  void change_load(const core::RunId& run, const ScaledService& service) {
    World& world = fronts_.world_;
    if (fronts_.loads_[run]++ >= kLoadsMax) return;
    world.after(world.random.below(kLoadMsMax), [this, &world, alive = is_alive_, run, service] {
      if (!*alive) return;
      const ReplicaLimits& limits = service.limits;
      uint32_t replicas = limits.min + world.random.below(limits.max - limits.min + 1);
      post_(core::ReplicasScaled{run, service.unit, replicas});
      change_load(run, service);
    });
  }
  void next_later() {
    World& world = fronts_.world_;
    core::Time delay = fronts_.are_slow_ ? world.random.below(kAnswerMsMax) : 0;
    world.after(delay, [this, alive = is_alive_] {
      if (*alive) next();
    });
  }
  void next() {
    FrontOrder order = std::move(orders_.front());
    orders_.pop_front();
    core::Event answer = fronts_.obey(order);
    bool is_replaced = std::ranges::any_of(
        orders_, [&](const FrontOrder& later) { return later.traffic.run == order.traffic.run; });
    if (!orders_.empty()) next_later();
    fronts_.under_way_--;
    if (!is_replaced) post_(std::move(answer));
  }

  SimFronts& fronts_;
  const ServiceFronts::Post post_;
  std::deque<FrontOrder> orders_;
  const std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
};

std::shared_ptr<FrontControl> SimFronts::control(ServiceFronts::Post post) {
  return std::make_shared<Control>(*this, std::move(post));
}

core::Event SimFronts::obey(const FrontOrder& order) {
  const core::ShiftTraffic& traffic = order.traffic;
  world_.note((order.measures ? "measure " : "shift ") + traffic.run + " " +
              std::to_string(traffic.percent) + "%");
  if (order.measures) {
    core::TrafficMeasured measured{traffic.run, traffic.step};
    measured.requests = world_.random.below(kRequestsMax);
    bool is_bad = world_.random.one_in(8);
    measured.errors = is_bad ? measured.requests : 0;
    if (world_.strikes(FaultKind::task, 20)) measured.error = "no answer";
    return measured;
  }
  // Its error does not tell whether it was carried out. All other fronts are reached.
  bool fails =
      traffic.percent > 0 && !traffic.previous.empty() && world_.strikes(FaultKind::task, 20);
  if (!fails || world_.random.one_in(2)) {
    weights_.clear();
    weights_[traffic.run] = traffic.percent;
    if (!traffic.previous.empty()) weights_[traffic.previous] = 100 - traffic.percent;
  }
  return core::TrafficShifted{traffic.run, traffic.step, fails ? "no answer" : ""};
}

uint32_t SimFronts::percent_of(const core::RunId& run) const {
  auto found = weights_.find(run);
  return found == weights_.end() ? 0 : found->second;
}

void SimFronts::on_record(const core::State&, const core::Record& record) {
  if (const auto* shifted = std::get_if<core::TrafficShifted>(&record.event))
    answered_.insert(shifted->run);
  if (const auto* measured = std::get_if<core::TrafficMeasured>(&record.event))
    answered_.insert(measured->run);
  if (const auto* gate = std::get_if<core::GateAnswered>(&record.event)) {
    answered_.insert(gate->run);
    (gate->passes ? seen_.passed : seen_.refused)++;
    if (!gate->passes) refused_.insert(gate->run);
  }
  if (const auto* stop = std::get_if<core::StopRequested>(&record.event))
    stopped_.insert(stop->run);
  if (const auto* end = std::get_if<core::ServeEnded>(&record.event)) stopped_.insert(end->run);
  if (const auto* cancel = std::get_if<core::CancelRequested>(&record.event))
    stopped_.insert(cancel->run);
}

void SimFronts::on_batch(const core::State& state) {
  for (const auto& [id, run] : state.runs) {
    core::RolloverPhase was = before_[id].phase, is = run.rollover.phase;
    bool has_begun = core::is_under_way(was) && was != core::RolloverPhase::reverting;
    bool takes_over = is == core::RolloverPhase::done && core::is_under_way(was);
    seen_.done += takes_over;
    seen_.reverted += is == core::RolloverPhase::reverting && has_begun;
    seen_.interrupted += has_begun && is == core::RolloverPhase::none;
    const core::RunId& previous = run.rollover.previous;
    bool goes_on = core::is_under_way(is) && is != core::RolloverPhase::reverting;
    bool has_other = at_work_.contains(previous) && !stopped_.contains(previous);
    if (refused_.contains(id) && has_other && (goes_on || takes_over))
      throw BrokenPromise{"the version " + id + " goes on, but its gate has refused it"};
    if (!takes_over) continue;
    seen_.alone += !at_work_.contains(previous);
    if (at_work_.contains(previous) && answered_.contains(id) && percent_of(id) != 100)
      throw BrokenPromise{"the version " + previous + " was stopped before " + id +
                          " had all the traffic"};
  }
  before_.clear();
  at_work_.clear();
  answered_.clear();
  refused_.clear();
  stopped_.clear();
  for (const auto& [id, run] : state.runs) {
    before_[id] = run.rollover;
    if (serves(run)) at_work_.insert(id);
  }
}

void SimFronts::check(const core::State& state) const {
  bool is_quiet = under_way_ == 0;
  for (const auto& [id, run] : state.runs)
    is_quiet = is_quiet && !core::is_under_way(run.rollover.phase);
  if (!is_quiet || weights_.empty()) return;
  for (const auto& [id, run] : state.runs) {
    if (!serves(run)) continue;
    for (const auto& [other, percent] : weights_) {
      auto found = state.runs.find(other);
      bool is_left = other != id && percent > 0 && found != state.runs.end() &&
                     !core::is_final(found->second.status);
      if (is_left)
        throw BrokenPromise{"the version " + other + " has traffic, but " + id + " serves"};
    }
  }
}

}  // namespace flow::sim
