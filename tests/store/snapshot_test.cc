// Snapshots of the state: all that a state has is restored, and contradictory ones are rejected.
#include <catch2/catch.hpp>

#include "engine/core/retry.hpp"
#include "engine/core/rollover.hpp"
#include "engine/store/checksum.hpp"
#include "engine/store/journal_schema.hpp"
#include "engine/store/store.hpp"
#include "tests/store/journal_records.hpp"

using namespace flow;
using namespace flow::test;

TEST_CASE("a snapshot holds the call of a service's gate, and one of another task is rejected") {
  auto plan = std::make_shared<Plan>();
  plan->defs.resize(2);
  plan->defs[0].name = "digits";
  plan->defs[0].kind = TaskKind::service;
  plan->defs[0].service.canary.gate = "check";
  plan->defs[1].name = "check";
  plan->nodes.resize(1);
  plan->nodes[0].name = "digits";
  auto fragment = std::make_shared<PlanFragment>();
  fragment->nodes.resize(1);
  fragment->nodes[0].name = "digits/check";
  fragment->nodes[0].def = 1;
  fragment->result = Value(Ref{0, {}});
  FindPlan find_plan = [&](const Digest&) { return plan; };
  FindFragment find_fragment = [&](const Digest&) { return fragment; };
  core::State live;
  record(live, core::EngineStarted{1, 1000, 1 << 30});
  record(live, core::RunSubmitted{"r", "prod", sha256("plan"), plan, 0, false, false});
  core::Run& run = live.runs.at("r");
  run.units.emplace_back().node = 1;
  run.units.back().forced = true;
  run.units.back().phase = core::Phase::resolving;
  run.dynamics.push_back({0, sha256("calls"), fragment, 1, 1, {}});
  core::rebuild_derived(live);
  CHECK(core::is_gate(run, 1));
  CHECK_FALSE(core::is_gate(run, 0));
  auto restored = decode_snapshot(encode_snapshot(live), find_plan, find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  const core::Run& again = restored->runs.at("r");
  CHECK(core::is_gate(again, 1));
  CHECK(core::unit_name(again, 1) == "digits/check");
  CHECK(core::check_invariants(*restored) == "");
  plan->defs[0].kind = TaskKind::lua;
  CHECK_FALSE(decode_snapshot(encode_snapshot(live), find_plan, find_fragment).ok());
}

TEST_CASE("a snapshot holds a replicated service with the deaths of its replicas") {
  auto plan = std::make_shared<Plan>();
  plan->defs.resize(1);
  plan->defs[0].name = "digits";
  plan->defs[0].kind = TaskKind::service;
  plan->defs[0].service.replicas = 2;
  plan->nodes.resize(1);
  plan->nodes[0].name = "digits";
  FindPlan find_plan = [&](const Digest&) { return plan; };
  core::State live;
  auto feed = [&](core::Event event) { record(live, std::move(event)); };
  feed(core::EngineStarted{1, 1000, 1 << 30});
  CHECK(live.restarts_services);
  feed(core::RunSubmitted{"r", "", sha256("plan"), plan, 0, false, false});
  core::Run& run = live.runs.at("r");
  REQUIRE(run.units.size() == 3);
  core::UnitDetail detail;
  detail.was_ready = true;
  detail.ready_at = 17'000;
  detail.restarts = 4;
  detail.replicas_wanted = 6;
  detail.deaths_in_row = 3;
  run.units[2].detail = std::make_shared<const core::UnitDetail>(detail);
  auto restored = decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->restarts_services);
  const core::Run& again = restored->runs.at("r");
  CHECK(again.open_replica_sets == 1);
  CHECK(again.open_services == 2);
  CHECK(again.units[2].detail->was_ready);
  CHECK(again.units[2].detail->ready_at == 17'000);
  CHECK(again.units[2].detail->restarts == 4);
  CHECK(again.units[2].detail->replicas_wanted == 6);
  CHECK(again.units[2].detail->deaths_in_row == 3);
  CHECK(core::check_invariants(*restored) == "");

  run.units[2].instance = 2;
  std::string outside = encode_snapshot(live);
  CHECK_FALSE(decode_snapshot(outside, find_plan, Sources().find_fragment).ok());
}

TEST_CASE("an engine without slots is read as leading workers from before that was recorded") {
  Sources sources;
  core::State live;
  record(live, core::EngineStarted{3, 0, 4096, {}, false});
  CHECK(live.leads_workers);
  auto restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->leads_workers);
}

TEST_CASE(
    "a snapshot contains the ranks of a gang, and one with a rank without a place is rejected") {
  auto plan = std::make_shared<Plan>(*small_plan());
  plan->defs[0].resources.ranks = 3;
  FindPlan find_plan = [&](const Digest&) { return plan; };
  core::State live;
  auto feed = [&](core::Event event) { record(live, std::move(event)); };
  feed(core::EngineStarted{1, 2000, 1 << 30});
  feed(core::WorkerJoined{{"w1", 1000, 0, {}}});
  feed(core::RunSubmitted{"r", "", sha256("plan"), plan, 0, false, false});
  feed(core::InputsResolved{"r", 0, sha256("k"), false, {}, nullptr, {}});
  core::Assigned gang{core::next_attempt(live, live.runs.at("r"), 0), {}, 0, {{0}, {1}}, {1000, 0}};
  feed(gang);
  auto restored = decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->at == 1000);
  const core::Unit& unit = restored->runs.at("r").units[0];
  CHECK(unit.assigned == 1000);
  CHECK(unit.detail->others == gang.others);
  CHECK(unit.detail->share == gang.share);
  CHECK(core::check_invariants(*restored) == "");

  live.workers[1].is_up = false;
  CHECK_FALSE(decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment).ok());
  live.workers.pop_back();
  CHECK_FALSE(decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment).ok());
}

TEST_CASE(
    "a snapshot contains the workers, and one with an attempt on a missing worker is rejected") {
  auto plan = small_plan();
  FindPlan find_plan = [&](const Digest&) { return plan; };
  core::State live;
  auto feed = [&](core::Event event) { record(live, std::move(event)); };
  feed(core::EngineStarted{1, 2000, 1 << 30});
  feed(core::WorkerJoined{{"gone", 1000, 0, {}}});
  feed(of_disconnected_workers()[0].event);
  feed(core::WorkerLost{1, "silent"});
  feed(core::RunSubmitted{"r", "", sha256("plan"), plan, 0, false, false});
  feed(core::InputsResolved{"r", 0, sha256("k"), false, {}, nullptr, {}});
  feed(core::Assigned{core::next_attempt(live, live.runs.at("r"), 0), {}, 2});
  auto restored = decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  REQUIRE(restored->workers.size() == 3);
  CHECK_FALSE(restored->workers[1].is_up);
  CHECK(restored->workers[2].info.name == "w1");
  CHECK(restored->workers[2].free == live.workers[2].free);
  CHECK(restored->runs.at("r").units[0].worker == 2);
  CHECK(core::check_invariants(*restored) == "");

  live.workers[2].is_up = false;
  live.workers[2].is_disconnected = true;
  auto awaited = decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment);
  if (!awaited.ok()) FAIL(awaited.error().message);
  CHECK(awaited->workers[2].is_disconnected);
  CHECK_FALSE(awaited->workers[2].is_up);
  CHECK(awaited->workers[2].info.labels == live.workers[2].info.labels);
  CHECK(core::check_invariants(*awaited) == "");
  CHECK_FALSE(awaited->workers[2].is_draining);

  live.workers[0].changed = 17;
  live.workers[2].changed = 18;
  live.workers[2].is_draining = true;
  auto draining = decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment);
  if (!draining.ok()) FAIL(draining.error().message);
  CHECK(draining->workers[2].is_draining);
  CHECK(draining->workers[0].changed == 17);
  CHECK(draining->workers[2].changed == 18);
  CHECK(core::check_invariants(*draining) == "");
  live.workers[2].is_draining = false;

  live.workers[2].is_disconnected = false;
  CHECK_FALSE(decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment).ok());
  live.workers.pop_back();
  CHECK_FALSE(decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment).ok());
}

TEST_CASE("a snapshot contains the GPUs and their users, and a contradictory one is rejected") {
  auto plan = std::make_shared<Plan>(*small_plan());
  plan->defs[0].resources.gpus_milli = 500;
  FindPlan find_plan = [&](const Digest&) { return plan; };
  core::State live;
  auto feed = [&](core::Event event) { record(live, std::move(event)); };
  feed(core::EngineStarted{1, 2000, 1 << 30});
  feed(of_gpus()[0].event);
  feed(core::RunSubmitted{"r", "", sha256("plan"), plan, 0, false, false});
  feed(core::InputsResolved{"r", 0, sha256("k"), false, {}, nullptr, {}});
  feed(core::Assigned{core::next_attempt(live, live.runs.at("r"), 0), {"MIG-b"}});
  auto restored = decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->workers[0].info.gpus == live.workers[0].info.gpus);
  CHECK(restored->workers[0].free == live.workers[0].free);
  CHECK(restored->runs.at("r").units[0].detail->gpus == std::vector<std::string>{"MIG-b"});
  CHECK(core::check_invariants(*restored) == "");

  live.workers[0].info.gpus.pop_back();
  auto broken = decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment);
  REQUIRE_FALSE(broken.ok());
  CHECK_THAT(broken.error().message,
             Catch::Contains("an attempt on a worker, or a GPU, that is not there"));
}

TEST_CASE("a run keeps its newest actions, but none that nobody asked for, also in a snapshot") {
  Sources sources;
  core::State live;
  std::vector<core::Command> dropped;
  std::vector<core::Record> records = one_of_each(sources);
  for (size_t i = 0; i < 2; i++) core::apply(live, records[i], dropped);
  const core::Run& run = live.runs.begin()->second;
  core::Time at = 2000;
  auto signal = [&](const std::string& by) {
    std::string name = "s" + std::to_string(at);
    core::Record record{live.sequence + 1, at++,
                        core::SignalReceived{run.id, name, sha256("1"), by}};
    core::apply(live, record, dropped);
  };
  signal("");
  CHECK(run.actions.empty());
  for (size_t i = 0; i < core::kActionsMax + 2; i++) signal("ada@node1");
  REQUIRE(run.actions.size() == core::kActionsMax);
  CHECK(run.actions.front() == core::Action{core::ActionKind::signal, 2003, "ada@node1", "s2003"});
  auto restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->runs.begin()->second.actions == run.actions);
}

TEST_CASE("a snapshot contains what attempts held and the budget, and rejects damaged ones") {
  Sources sources;
  core::State live;
  std::vector<core::Command> dropped;
  std::vector<core::Record> records = one_of_each(sources);
  for (size_t i = 0; i < 2; i++) core::apply(live, records[i], dropped);
  core::Run& run = live.runs.begin()->second;
  Consumption used;
  used.outcome = AttemptEnding::lost;
  used.labels = {{"pool", "spot"}};
  used.attempts = 2;
  used.rank_ms = 1;
  used.cpu_milli_ms = 2;
  used.memory_byte_ms = 3;
  used.gpus = {{"NVIDIA H200", 4}};
  used.cpu_used_us = 5;
  used.unmeasured = 1;
  used.gpu_stage_milli_ms = 6;
  used.gpu_used_milli_ms = 7;
  used.gpu_measured_milli_ms = 8;
  used.gpu_energy_mj = 9;
  run.consumed[1] = {used, Consumption{}};
  core::RunBudget budget;
  budget.terms = std::get<core::BudgetSet>(of_budgets()[0].event).terms;
  budget.spent_nano = 1.5;
  budget.longest_ms.assign(run.plan->defs.size(), 7);
  budget.has_warned = budget.is_spent = true;
  budget.serial = 8;
  budget.timer_at = 9;
  run.budget = budget;
  auto restore = [&] {
    return decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  };
  auto restored = restore();
  if (!restored.ok()) FAIL(restored.error().message);
  const core::Run& back = restored->runs.begin()->second;
  CHECK(back.consumed == run.consumed);
  REQUIRE(back.budget);
  CHECK(back.budget->terms == budget.terms);
  CHECK(back.budget->spent_nano == 1.5);
  CHECK(back.budget->longest_ms == budget.longest_ms);
  CHECK(back.budget->has_warned);
  CHECK(back.budget->is_spent);
  CHECK(back.budget->serial == 8);
  CHECK(back.budget->timer_at == 9);
  run.consumed[1][0].rank_ms = -1;
  CHECK(restore().error().message.find("negative usage") != std::string::npos);
  run.consumed.clear();
  run.budget->terms.limit_nano = 0;
  CHECK(restore().error().message.find("a damaged budget") != std::string::npos);
}

TEST_CASE(
    "a snapshot contains what attempts used and who submitted, and negative numbers are rejected") {
  Sources sources;
  core::State live;
  std::vector<core::Command> dropped;
  std::vector<core::Record> records = one_of_each(sources);
  for (size_t i = 0; i < 2; i++) core::apply(live, records[i], dropped);
  core::Run& run = live.runs.begin()->second;
  run.user = "ada";
  run.times = {{0.25F, 0, -1, 1e-6F}, {}};
  run.totals[1] = {int64_t{1} << 40, 0, -1, 2.5, 0.5, 2, 700};
  run.units[0].ready = 1000;
  auto restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  const core::Run& back = restored->runs.begin()->second;
  CHECK(back.user == "ada");
  CHECK(core::times_of(back, 0) == run.times[0]);
  CHECK(core::times_of(back, 1) == core::AttemptTimes{});
  CHECK(back.totals == run.totals);
  CHECK(encode_snapshot(*restored) == encode_snapshot(live));
  run.totals[2] = {};
  restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  REQUIRE_FALSE(restored.ok());
  CHECK_THAT(restored.error().message, Catch::Contains("totals of a unit that is not there"));
}

TEST_CASE("a snapshot contains the rollover of a run, and a damaged one is rejected") {
  Sources sources;
  core::State live;
  std::vector<core::Command> dropped;
  std::vector<core::Record> records = one_of_each(sources);
  for (size_t i = 0; i < 2; i++) core::apply(live, records[i], dropped);
  REQUIRE(live.runs.size() == 1);
  core::Run& run = live.runs.begin()->second;
  run.rollover = {"run-0", core::RolloverPhase::reverting, 2, 5, 1000, "it failed", 1};
  auto restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->runs.begin()->second.rollover == run.rollover);
  run.rollover.gate = static_cast<core::UnitId>(run.units.size());
  restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  REQUIRE_FALSE(restored.ok());
  CHECK_THAT(restored.error().message, Catch::Contains("a rollover with a gate that is not there"));
  run.rollover.gate = 1;
  run.rollover.phase = static_cast<core::RolloverPhase>(8);
  restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  REQUIRE_FALSE(restored.ok());
  CHECK_THAT(restored.error().message, Catch::Contains("a rollover in an unknown phase"));
}

TEST_CASE("a snapshot contains failures per machine and the excluded machines") {
  auto plan = small_plan();
  FindPlan find_plan = [&](const Digest&) { return plan; };
  core::State live;
  auto feed = [&](core::Event event) { record(live, std::move(event)); };
  feed(core::EngineStarted{1, 0, 1 << 30});
  feed(core::WorkersAnnounced{3});
  feed(core::WorkerJoined{{"w1", 1000, 0, {}}});
  feed(core::RunSubmitted{"r", "", sha256("plan"), plan, 0, false, false});
  feed(core::InputsResolved{"r", 0, sha256("k"), false, {}, nullptr, {}});
  live.workers[1].failures = {{"r", 0, 0}, {"r", 1, 0}, {"q", 7, 2}};
  live.workers[1].aside_until = 61'000;
  live.workers[1].aside_serial = 5;
  live.runs.at("r").failed_defs = {{0, 1}};
  core::UnitDetail detail;
  detail.computed = std::make_shared<const core::AttemptResources>(
      core::AttemptResources{4, {2000, 3000, 0, 0, "", "rack == a", 1, 0, {}}, 60'000});
  detail.failed = {{1, 1, core::Cause::exit_code}, {2, 0, core::Cause::lost}};
  detail.deaths = {{1, 17, false, "`b`"}};
  live.runs.at("r").units[0].detail = std::make_shared<const core::UnitDetail>(detail);
  core::rebuild_derived(live);
  auto restored = decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->announced == 3);
  CHECK(restored->workers[1].failures == live.workers[1].failures);
  CHECK(restored->workers[1].aside_until == 61'000);
  CHECK(restored->workers[1].aside_serial == 5);
  CHECK(restored->runs.at("r").failed_defs == live.runs.at("r").failed_defs);
  CHECK(restored->runs.at("r").units[0].detail->failed == detail.failed);
  CHECK(restored->runs.at("r").units[0].detail->deaths == detail.deaths);
  CHECK(core::timeout_ms_of(restored->runs.at("r"), 0) == 60'000);
  CHECK(core::resources_of(restored->runs.at("r"), 0).memory_bytes == 3000);
  CHECK(core::resources_of(restored->runs.at("r"), 0).where == "rack == a");
  CHECK(core::check_invariants(*restored) == "");
}

TEST_CASE("a snapshot holds when workers were there, and one of an older flow does not") {
  Sources sources;
  core::State live;
  record(live, core::EngineStarted{1, 1000, 1 << 30, {}, true});
  record(live, core::WorkerJoined{{"w1", 1000, 0, {{0, "GPU-a", "H200", "", 80, -1, false}}}});
  live.presences.insert(live.presences.begin(), {100, 200, "w0", {{"A1", 1}, {"T4", 2}}});
  live.presences_since = 50;
  auto restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->presences == live.presences);
  CHECK(restored->presences_since == 50);

  std::string older = encode_snapshot(live);
  REQUIRE(older.substr(0, 2) == schema_bytes(kJournalSchema));
  older = older.substr(0, older.size() - kChecksumBytes);
  older[1] = 24;
  seal(older);
  auto begun = decode_snapshot(older, sources.find_plan, sources.find_fragment);
  if (!begun.ok()) FAIL(begun.error().message);
  CHECK(begun->presences == std::vector<core::GpuPresence>{{live.at, 0, "w1", {{"H200", 1}}}});
  CHECK(begun->presences_since == live.at);

  live.presences[0].until = 100;
  std::string empty = encode_snapshot(live);
  CHECK_FALSE(decode_snapshot(empty, sources.find_plan, sources.find_fragment).ok());
}

TEST_CASE("a snapshot holds how long ranks waited and what was sent for them") {
  core::State live;
  auto plan = small_plan();
  FindPlan find_plan = [&](const Digest&) { return plan; };
  record(live, core::EngineStarted{1, 1000, 1 << 30});
  record(live, core::RunSubmitted{"r", "", sha256("plan"), plan, 0, false, false});
  core::Run& run = live.runs.at("r");
  Consumption known, unknown;
  known.gpu_rank_milli_ms = 0;
  known.moved_bytes = 5e9;
  run.consumed[0] = {known, unknown};
  run.consumed[0][1].outcome = AttemptEnding::lost;
  run.knows_traffic = true;
  auto restored = decode_snapshot(encode_snapshot(live), find_plan, Sources().find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->runs.at("r").consumed == run.consumed);
  CHECK(restored->runs.at("r").knows_traffic);
}
