#include "tests/sim/engine_clients.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/runs/run_rows.hpp"
#include "tests/sim/engine_plans.hpp"

namespace flow::sim {

namespace {

constexpr uint32_t kCrashInListener = 120;

bool is_final(const std::string& status) {
  return status == "succeeded" || status == "failed" || status == "cancelled";
}

/// A resume recomputes what is missing.
bool misses_input(const core::Run& run) {
  return std::any_of(run.units.begin(), run.units.end(), [](const core::Unit& u) {
    return !u.dropped && u.status == core::UnitStatus::failed && u.detail &&
           u.detail->failure.cause == core::Cause::staging;
  });
}

/// Compares what a run's listener gets with what is durable.
class CheckingListener final : public RunListener {
 public:
  CheckingListener(World& world, const DurableState& durable) : world_(world), durable_(durable) {}

  void on_events(std::vector<Event> events) override {
    world_.may_crash(kCrashInListener);
    for (const Event& event : events) check(event);
  }
  void on_end() override {}
  void fail(Error) override {}

 private:
  void check(const Event& event) const {
    if (event.type == "run" && is_final(event.status) && !durable_.has_ended(event.run))
      throw BrokenPromise{"a client was told the end of a run that is not durable"};
    if (event.type != "task" || event.status != "succeeded") return;
    const core::Unit* unit = durable_.unit(event.run, event.task);
    bool is_known = unit == nullptr || unit->status == core::UnitStatus::succeeded;
    if (!is_known || !durable_.was_submitted(event.run))
      throw BrokenPromise{"a client was told a success that is not durable"};
  }

  World& world_;
  const DurableState& durable_;
};

/// A CPU costs 1 unit per second, and GPUs as much as two.
core::BudgetTerms terms_of(int64_t nano) {
  core::BudgetTerms terms;
  terms.prices.currency = "USD";
  terms.prices.base.cpu_hour = 3600 * kNano;
  terms.prices.base.gpu_hour = {{"*", 7200 * kNano}};
  terms.limit_nano = nano;
  return terms;
}

}  // namespace

std::string difference(const Outcome& one, const Outcome& other) {
  if (one.depends_on_order || other.depends_on_order) return "";
  if (one.status != other.status)
    return fmt::format("{} and {}", core::status_name(one.status), core::status_name(other.status));
  for (const auto& [name, unit] : one.units) {
    auto found = other.units.find(name);
    if (found == other.units.end()) return fmt::format("`{}` and no such task", name);
    if (unit == found->second) continue;
    return fmt::format("`{}` {} with {} and {} with {}", name, core::status_name(unit.first),
                       unit.second.hex(), core::status_name(found->second.first),
                       found->second.second.hex());
  }
  if (one.units.size() != other.units.size()) return "different numbers of tasks";
  bool has_same_result = one.result == other.result || !one.is_whole || !other.is_whole;
  return has_same_result ? "" : "different results of the run";
}

SimClient::SimClient(World& world, Disk& disk, const DurableState& durable, Head& head,
                     uint32_t number, Submission submission)
    : world_(world),
      disk_(disk),
      durable_(durable),
      head_(head),
      id_(fmt::format("20260101-000000-sim{:03}", number)),
      submission_(std::move(submission)),
      plan_bytes_(encode_plan(*submission_.plan)),
      starts_(world.now() + submission_.delay_ms) {
  constexpr uint32_t kWithBudget = 3;  // each such client has one
  constexpr int64_t kFirstBudget = kNano / 100;
  bool may_have = submission_.name.empty();
  if (number % kWithBudget == 1 && may_have) budget_nano_ = kFirstBudget;
}

RunContext SimClient::context() const {
  RunContext context;
  context.record.id = id_;
  context.record.name = submission_.name.empty() ? id_ : submission_.name;
  context.record.plan_digest = sha256(plan_bytes_);
  context.record.bundle_digest = sha256(bundle_);
  context.record.fail_fast = submission_.fail_fast;
  context.record.fresh = submission_.fresh;
  context.bundle = std::make_shared<const std::string>(bundle_);
  context.serve_for_ms = submission_.serve_for_ms;
  if (budget_nano_ > 0) context.budget = terms_of(budget_nano_);
  context.listener = std::make_shared<CheckingListener>(world_, durable_);
  return context;
}

std::string SimClient::status() const {
  auto record = record_of(head_.loop().parts().store, id_);
  return record ? record->status : "";
}

bool SimClient::act() {
  if (is_done_ || world_.now() < std::max(starts_, next_try_)) return false;
  std::string now = status();
  if (now.empty()) return submit();
  is_submitted_ = true;
  if (is_final(now)) {
    if (!durable_.has_ended(id_)) throw BrokenPromise{"a run's row shows an end too early"};
    if (!submission_.repeats.empty() && !has_repeated_ && now == "succeeded") {
      has_repeated_ = true;
      return resume(submission_.repeats);
    }
    return finish(now);
  }
  bool is_left = known_to_ != head_.starts() || now == "interrupted";
  if (is_left) return resume("");
  return bother(now);
}

bool SimClient::finish(const std::string& status) {
  auto archived = head_.loop().parts().stored_runs.find_archived(id_);
  if (!archived.ok() || !*archived) throw BrokenPromise{"a run that ended is not archived: " + id_};
  const core::Run& run = (*archived)->runs.at(id_);
  if (status == "failed" && misses_input(run)) {
    recomputations_++;
    return resume("");
  }
  outcome_.status = run.status;
  outcome_.result = run.result;
  outcome_.depends_on_order =
      submission_.cancels || submission_.fail_fast || !submission_.name.empty();
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    const core::Unit& u = run.units[unit];
    if (u.dropped) continue;
    outcome_.units[core::unit_name(run, unit)] = {u.status, u.result};
    bool is_quarantined = u.detail && u.detail->failure.cause == core::Cause::quarantined;
    outcome_.depends_on_order = outcome_.depends_on_order || is_quarantined;
  }
  is_done_ = true;
  world_.note(id_ + " is done: " + status);
  return true;
}

bool SimClient::submit() {
  if (is_submitted_) throw BrokenPromise{"a run that was submitted is gone: " + id_};
  Prepared prepared;
  prepared.context = context();
  prepared.plan = submission_.plan;
  prepared.plan_bytes = plan_bytes_;
  world_.note("submit " + id_);
  known_to_ = head_.starts();
  Status status = head_.loop().submit(std::move(prepared), submission_.jobs);
  if (head_.loop().stopped_by()) throw HeadStopped();
  if (!status.ok()) throw BrokenPromise{"a submission was refused: " + status.error().message};
  if (!durable_.was_submitted(id_)) throw BrokenPromise{"a submission returned and is not durable"};
  is_submitted_ = true;
  return true;
}

// Where it is refused, the run is at another point by now: the next look at its row tells.
bool SimClient::resume(const std::string& task) {
  world_.note("resume " + id_ + " " + task);
  budget_nano_ *= 2;  // so that the run ends at some time
  RunContext again = context();
  auto record = record_of(head_.loop().parts().store, id_);
  again.record = *record;
  known_to_ = head_.starts();
  next_try_ = world_.now() + 5 + world_.random.below(20);
  Status status = head_.loop().resume(std::move(again), task);
  if (head_.loop().stopped_by()) throw HeadStopped();
  if (!status.ok()) world_.note("not resumed: " + status.error().message);
  return true;
}

bool SimClient::post(core::Event event, std::vector<std::pair<Digest, std::string>> blobs) {
  auto posted = head_.loop().post_and_wait(std::move(event), std::move(blobs));
  if (head_.loop().stopped_by()) throw HeadStopped();
  return posted.ok() && *posted;
}

bool SimClient::bother(const std::string& status) {
  next_try_ = world_.now() + 1 + world_.random.below(30);
  bool is_waiting = status == "waiting" || world_.random.one_in(20);
  if (is_waiting && !has_signalled_) {
    std::string value = encode_value(Value(true));
    world_.note("signal " + id_);
    has_signalled_ =
        post(core::SignalReceived{id_, kGoSignal, sha256(value)}, {{sha256(value), value}});
    const auto& runs = durable_.state().runs;
    auto run = runs.find(id_);
    if (has_signalled_ && run != runs.end() && !run->second.signals.contains(kGoSignal))
      throw BrokenPromise{"a signal was accepted and is not durable"};
    return true;
  }
  if (submission_.cancels && world_.random.one_in(6)) {
    world_.note("cancel " + id_);
    bool is_cancelled = post(core::CancelRequested{id_});
    const auto& runs = durable_.state().runs;
    auto run = runs.find(id_);
    if (is_cancelled && run != runs.end() && !run->second.cancelling &&
        !core::is_final(run->second.status))
      throw BrokenPromise{"a cancellation was accepted and is not durable"};
    return true;
  }
  if (world_.strikes(FaultKind::stray, 10)) {
    world_.note("interrupt " + id_);
    head_.loop().interrupt(id_, world_.random.one_in(3));
    return true;
  }
  return false;
}

void SimClient::check_kept() const {
  auto store = make_disk_store(disk_);
  auto record = record_of(*store, id_);
  if (!record || !is_final(record->status))
    throw BrokenPromise{"a run's outcome was lost: " + text()};
}

std::string SimClient::text() const {
  auto store = make_disk_store(disk_);
  auto record = record_of(*store, id_);
  return fmt::format("run {} is {}", id_, record ? record->status : "not there");
}

}  // namespace flow::sim
