// The journal: records are read back, bytes of old schemas replay, damage and newer schemas are
// reported.
#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "engine/core/retry.hpp"
#include "engine/store/checksum.hpp"
#include "engine/store/journal_schema.hpp"
#include "engine/store/store.hpp"
#include "tests/store/journal_records.hpp"

using namespace flow;
using namespace flow::test;

namespace {

std::vector<core::Record> of_ignored_failures() {
  return {{1, 1000, core::InputsMissing{"run-1", 4, "one of its arguments is flow.missing"}}};
}

std::vector<core::Record> of_tags() {
  return {{1, 1000, core::MapExpanded{"run-1", 4, 2, {"s1", "s 2"}}}};
}

std::vector<core::Record> of_resources() {
  core::AttemptResources computed{2, {2000, 3000, 500, 60, "H200", "disk == ssd"}, 60'000};
  computed.resources.ranks_max = 2;
  computed.resources.custom_resources = {{"fpga", 500}};
  return {{1, 1000, core::ResourcesComputed{"run-1", 4, computed}}};
}

std::vector<core::Record> of_rollovers() {
  core::TrafficMeasured measured{"run-1", 2, 300, 4, 1500, 20'000, "gone"};
  return {{1, 1000, core::TrafficShifted{"run-1", 2, "unreachable"}},
          {2, 1001, measured},
          {3, 1002, core::TimerFired{"run-1", kNoNode, 7}}};
}

std::vector<core::Record> of_scaling(const Sources& sources) {
  return {{1, 1000, core::ReplicasScaled{"run-1", 3, 4}},
          {2, 1001, core::GateCalled{"run-1", 1, sources.fragment, sources.fragment_digest}},
          {3, 1002, core::GateAnswered{"run-1", 1, false, "`check` returned false"}}};
}

std::vector<core::Record> of_actions(const Sources& sources) {
  core::RunSubmitted submitted;
  submitted.run = "run-1";
  submitted.plan = sources.plan;
  submitted.plan_digest = sources.digest;
  submitted.actions = {{core::ActionKind::signal, 900, "ada@node1", "go"},
                       {core::ActionKind::rollback, 1000, "deploy@10.0.0.7 (page)"}};
  return {{1, 1000, submitted},
          {2, 1001, core::SignalReceived{"run-1", "stay", sha256("true"), "ada@node1"}},
          {3, 1002, core::CancelRequested{"run-1", "ada@node1"}},
          {4, 1003, core::StopRequested{"run-1", "bob@node2"}},
          {5, 1004, core::ServeEnded{"run-1", "bob@node2"}},
          {6, 1005, core::RetryRequested{"run-1", true, 1, {}, "eve@node3", true}}};
}

std::vector<core::Record> of_gpu_use() {
  core::AttemptId id{"run-1", 1, 2, 3 << 16};
  core::AttemptSucceeded succeeded{id, sha256("result"), nullptr, {}};
  succeeded.usage.gpu_used_us = 1'500'000;
  succeeded.usage.gpu_measured_us = 3'000'000;
  succeeded.usage.gpu_energy_mj = int64_t{1} << 40;
  core::AttemptStopped stopped{id};
  stopped.usage.gpu_used_us = stopped.usage.gpu_measured_us = 0;
  return {{1, 1000, succeeded}, {2, 1001, stopped}};
}

std::vector<core::Record> of_waits() {
  core::AttemptId id{"run-1", 1, 2, 3 << 16};
  core::AttemptSucceeded succeeded{id, sha256("result"), nullptr, {}};
  succeeded.usage.connect_wait_us = 4'000'000;
  succeeded.usage.leave_wait_us = 250'000;
  succeeded.usage.moved_bytes = int64_t{1} << 40;
  core::AttemptStopped stopped{id};
  stopped.usage.moved_bytes = 0;
  return {{1, 1000, succeeded}, {2, 1001, stopped}};
}

std::vector<core::Record> of_usage(const Sources& sources) {
  core::AttemptId id{"run-1", 1, 2, 3 << 16};
  core::AttemptUsage all{int64_t{200} << 20, 1'250'000, 4096, 0, 30, 7'000'000'000};
  core::AttemptUsage some;
  some.stage_us = 0;
  core::RunSubmitted submitted{"run-1", "", sources.digest, sources.plan};
  submitted.user = "ada";
  core::AttemptSucceeded succeeded{id, sha256("result"), nullptr, {}};
  succeeded.usage = all;
  core::AttemptFailed failed{id, {core::Cause::signal, "it died", "", 9}};
  failed.usage = some;
  return {{1, 1000, submitted},
          {2, 1001, succeeded},
          {3, 1002, failed},
          {4, 1003, core::AttemptWaiting{id, "signal", "wait#2", 99, all}},
          {5, 1004, core::AttemptStopped{id, all}},
          {6, 1005, core::AttemptStopped{id}}};
}

std::vector<core::Record> of_restarted_services() {
  return {{1, 1000, core::EngineStarted{5, 2000, 4096, {}, true, true}}};
}

std::vector<core::Record> of_workers() {
  core::WorkerInfo worker{"w1", 4000, int64_t{1} << 33, {}};
  worker.gpus.push_back({0, "GPU-a", "NVIDIA H200", "0000:1b:00.0", int64_t{140} << 30, 1, false});
  core::Assigned assigned{{"run-1", 1, 2, 3 << 16}, {"GPU-a"}, 1};
  return {{1, 1000, core::WorkerJoined{worker}},
          {2, 1001, assigned},
          {3, 1002, core::WorkerLost{1, "it is silent"}}};
}

std::vector<core::Record> of_draining_workers() {
  return {{1, 1000, core::WorkerJoined{{"w1", 4000, 0, {}}}},
          {2, 1001, core::WorkerDraining{1, "it was asked to end"}}};
}

std::vector<core::Record> of_joined_gpus() {
  core::WorkerInfo worker{"w1", 4000, 0, {}};
  worker.gpus = {{0, "GPU-a", "A", "", 80, -1, false},
                 {1, "GPU-b", "A", "", 80, 1, false, 1, "ab/3"},
                 {2, "GPU-c", "A", "", 80, 1, false, 1}};
  return {{1, 1000, core::WorkerJoined{worker}}};
}

std::vector<core::Record> of_named() {
  core::WorkerInfo worker{"w1", 4000, 0, {}};
  worker.custom_resources = {{"fpga", 2000}, {"licence", 500}};
  return {{1, 1000, core::EngineStarted{1, 0, 0, {{"scanner", 1000}}, false, false}},
          {2, 1000, core::WorkerJoined{worker}}};
}

std::vector<core::Record> of_failed_gpus() {
  core::WorkerInfo worker{"w1", 4000, 0, {}};
  worker.gpus.push_back({0, "GPU-a", "A", "", 80, -1, false});
  worker.gpus.back().fault = "fell off the bus (Xid 79)";
  worker.gpus.back().is_dead = true;
  core::Failure failure{core::Cause::gpu_fault, "GPU-a fell off the bus", "", 0};
  return {{1, 1000, core::WorkerJoined{worker}},
          {2, 1001, core::GpuFailed{1, "GPU-b", "wore (Xid 94)", false}},
          {3, 1002, core::AttemptFailed{{"run-1", 1, 2, 3 << 16}, failure}}};
}

std::vector<core::Record> of_lost_results() {
  return {{1, 1000, core::RetryRequested{"run-1", false, 0, {2, 7}}}};
}

std::vector<core::Record> of_deaths() {
  core::WorkerJoined joined{{"w1", 4000, 0, {}}};
  joined.is_restarted = true;
  core::Failure failure{core::Cause::lost, "the worker died", "", 0};
  return {{1, 1000, joined},
          {2, 1001, core::AttemptFailed{{"run-1", 1, 2, 3 << 16}, failure, 3, true}},
          {3, 1002, core::WorkerLost{1, "killed", true}},
          {4, 1003, core::TimerFired{"", 1, 2}},
          {5, 1004, core::WorkersAnnounced{4}}};
}

std::vector<core::Record> of_given_gpus() {
  return {{1, 1000, core::GpusFound{{{0, "GPU-a", "A", "", 80, -1, false}}, 2}}};
}

std::vector<core::Record> of_gone_inputs() {
  core::Failure failure{core::Cause::staging, "an input is gone", "", core::kInputIsGone};
  return {{1, 1000, core::AttemptFailed{{"run-1", 1, 2, 3 << 16}, failure}}};
}

std::vector<core::Record> of_growing_gangs() {
  return {{1, 1000, core::ResizeRequested{{"run-1", 1, 2, 3 << 16}, 3}}};
}

std::vector<core::Record> of_gangs() {
  core::Assigned assigned{{"run-1", 1, 2, 3 << 16}, {"GPU-a"}, 1};
  assigned.others = {{1, {"GPU-b"}}, {2, {"GPU-a"}}, {0, {"GPU-c"}}};
  assigned.share = {1500, int64_t{1} << 33};
  core::Assigned alone{{"run-1", 0, 1, 3 << 16}, {}, 0, {}, {250, 0}};  // an elastic gang
  return {{1, 1000, assigned}, {2, 1001, alone}};
}

/// The records in the stored bytes of a schema. They must equal `records`.
std::vector<core::Record> replayed(const std::string& version,
                                   const std::vector<core::Record>& records,
                                   const Sources& sources) {
  std::string text = pinned("journal-" + version);
  std::string now = encode_records(records);
  if (text.empty())
    FAIL("tests/store/pinned/journal-" << version << ".hex is missing; today's bytes are "
                                       << hex(now));
  auto back = decode_records(unhex(text), sources.find_plan, sources.find_fragment);
  if (!back.ok()) FAIL(back.error().message);
  CHECK(encode_records(*back) == now);
  CHECK(unhex(text).substr(0, 2) == schema_bytes(std::stoi(version)));
  CHECK(now.substr(0, 2) ==
        schema_bytes(kJournalSchema));  // new batches always have the newest schema
  return std::move(*back);
}

}  // namespace

TEST_CASE("every event is encoded, decoded and encoded to the same bytes") {
  Sources sources;
  std::vector<core::Record> records = one_of_each(sources);
  std::string bytes = encode_records(records);
  auto back = decode_records(bytes, sources.find_plan, sources.find_fragment);
  if (!back.ok()) FAIL(back.error().message);
  REQUIRE(back->size() == records.size());
  for (size_t i = 0; i < records.size(); i++)
    CHECK((*back)[i].event.index() == records[i].event.index());
  CHECK(encode_records(*back) == bytes);
}

TEST_CASE("bytes of version 1 replay") {
  Sources sources;
  replayed("1", one_of_each(sources), sources);
}

TEST_CASE("GPUs are journaled, and older versions reject them as newer") {
  Sources sources;
  std::string bytes = encode_records(of_gpus());
  auto back = decode_records(bytes, sources.find_plan, sources.find_fragment);
  if (!back.ok()) FAIL(back.error().message);
  CHECK(encode_records(*back) == bytes);
  const auto& found = std::get<core::GpusFound>(back->at(0).event);
  CHECK(found.gpus == std::get<core::GpusFound>(of_gpus()[0].event).gpus);
  CHECK(std::get<core::Assigned>(back->at(1).event).gpus ==
        std::vector<std::string>{"GPU-a", "MIG-b"});
  CHECK(bytes.substr(0, 2) == schema_bytes(kJournalSchema));
  CHECK(encode_records(one_of_each(sources)).substr(0, 2) == schema_bytes(kJournalSchema));
}

TEST_CASE("bytes of version 2 replay") {
  Sources sources;
  replayed("2", of_gpus(), sources);
}

TEST_CASE("bytes of version 3, with workers, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("3", of_workers(), sources);
  const core::WorkerInfo& worker = std::get<core::WorkerJoined>(back.at(0).event).worker;
  CHECK(worker.name == "w1");
  CHECK(worker.cpus_milli == 4000);
  CHECK(worker.memory_bytes == int64_t{1} << 33);
  CHECK(worker.gpus.at(0).uuid == "GPU-a");
  CHECK(std::get<core::Assigned>(back.at(1).event).worker == 1);
  CHECK(std::get<core::WorkerLost>(back.at(2).event).why == "it is silent");
}

TEST_CASE("bytes of version 4, with disconnected workers, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("4", of_disconnected_workers(), sources);
  const auto& joined = std::get<core::WorkerJoined>(back.at(0).event);
  CHECK(joined.worker.labels ==
        std::vector<std::pair<std::string, std::string>>{{"rack", "a"}, {"zone", "b"}});
  CHECK(joined.attempts ==
        std::get<core::WorkerJoined>(of_disconnected_workers()[0].event).attempts);
  const auto& disconnected = std::get<core::WorkerDisconnected>(back.at(1).event);
  CHECK(disconnected.worker == 1);
  CHECK(disconnected.why == "its line was cut");
}

TEST_CASE("bytes of version 5, with draining workers, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("5", of_draining_workers(), sources);
  const auto& draining = std::get<core::WorkerDraining>(back.at(1).event);
  CHECK(draining.worker == 1);
  CHECK(draining.why == "it was asked to end");
}

TEST_CASE("bytes of version 7, with NVLink between GPUs, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("7", of_joined_gpus(), sources);
  const auto& joined = std::get<core::WorkerJoined>(back.at(0).event);
  CHECK(joined.worker.gpus == std::get<core::WorkerJoined>(of_joined_gpus()[0].event).worker.gpus);

  core::State live;
  live.workers.emplace_back().info = joined.worker;
  auto restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->workers.at(1).info.gpus == joined.worker.gpus);
}

TEST_CASE("bytes of version 8, with custom resources, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("8", of_named(), sources);
  const auto& started = std::get<core::EngineStarted>(back.at(0).event);
  CHECK(started.custom_resources == ResourceQuantities{{"scanner", 1000}});
  const auto& joined = std::get<core::WorkerJoined>(back.at(1).event);
  CHECK(joined.worker.custom_resources == ResourceQuantities{{"fpga", 2000}, {"licence", 500}});

  core::State live;
  live.workers[0].info.custom_resources = started.custom_resources;
  live.workers.emplace_back().info = joined.worker;
  auto restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->workers.at(0).info.custom_resources == started.custom_resources);
  CHECK(restored->workers.at(1).info.custom_resources == joined.worker.custom_resources);
  CHECK(restored->workers.at(1).free.custom_resources == joined.worker.custom_resources);
  live.workers[1].info.custom_resources[0].second = 0;
  CHECK_FALSE(
      decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment).ok());
}

TEST_CASE("bytes of version 9, with an engine that runs tasks and leads workers, replay") {
  Sources sources;
  core::EngineStarted leading{3, 2000, 4096, {}, true, false};
  std::vector<core::Record> back = replayed("9", {{7, 1000, leading}}, sources);
  const auto& started = std::get<core::EngineStarted>(back.at(0).event);
  CHECK(started.leads_workers);
  CHECK_FALSE(started.restarts_services);  // as all engines before schema 19
  CHECK(started.cpus_milli == 2000);

  core::State live;
  record(live, started);
  CHECK(live.leads_workers);
  auto restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->leads_workers);

  core::EngineStarted alone{4, 2000, 4096, {}, false};
  record(live, alone);
  restored = decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK_FALSE(restored->leads_workers);
}

TEST_CASE("bytes of version 10, with GPU failures, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("10", of_failed_gpus(), sources);
  const auto& joined = std::get<core::WorkerJoined>(back.at(0).event);
  CHECK(joined.worker.gpus == std::get<core::WorkerJoined>(of_failed_gpus()[0].event).worker.gpus);
  const auto& failed = std::get<core::GpuFailed>(back.at(1).event);
  CHECK(failed.worker == 1);
  CHECK(failed.uuid == "GPU-b");
  CHECK(failed.fault == "wore (Xid 94)");
  CHECK_FALSE(failed.is_dead);
  CHECK(std::get<core::AttemptFailed>(back.at(2).event).failure.cause == core::Cause::gpu_fault);

  core::State live;
  live.workers.emplace_back().info = joined.worker;
  std::string bytes = encode_snapshot(live);
  auto restored = decode_snapshot(bytes, sources.find_plan, sources.find_fragment);
  if (!restored.ok()) FAIL(restored.error().message);
  CHECK(restored->workers.at(1).info.gpus == joined.worker.gpus);
  live.workers[1].info.gpus[0].fault.clear();
  CHECK_FALSE(
      decode_snapshot(encode_snapshot(live), sources.find_plan, sources.find_fragment).ok());
}

TEST_CASE("bytes of version 6, with growing gangs, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("6", of_growing_gangs(), sources);
  const auto& resize = std::get<core::ResizeRequested>(back.at(0).event);
  CHECK(resize.id == core::AttemptId{"run-1", 1, 2, 3 << 16});
  CHECK(resize.ranks == 3);
}

TEST_CASE("bytes of version 4, with gangs, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("4-gangs", of_gangs(), sources);
  for (size_t i = 0; i < back.size(); i++) {
    const auto& assigned = std::get<core::Assigned>(back[i].event);
    const auto was = std::get<core::Assigned>(of_gangs()[i].event);
    CHECK(assigned.worker == was.worker);
    CHECK(assigned.gpus == was.gpus);
    CHECK(assigned.others == was.others);
    CHECK(assigned.share == was.share);
  }
}

TEST_CASE("a damaged batch is rejected, whichever byte is damaged") {
  Sources sources;
  std::string bytes = encode_records(one_of_each(sources));
  for (size_t i = 0; i < bytes.size(); i++) {
    std::string bad = bytes;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    CHECK_FALSE(decode_records(bad, sources.find_plan, sources.find_fragment).ok());
  }
  CHECK_FALSE(
      decode_records(bytes.substr(0, bytes.size() - 1), sources.find_plan, sources.find_fragment)
          .ok());
  CHECK_FALSE(decode_records("", sources.find_plan, sources.find_fragment).ok());
}

TEST_CASE("a journal of a newer version is reported as newer") {
  Sources sources;
  std::string newer = schema_bytes(kJournalSchema + 1);  // no other field
  seal(newer);
  auto back = decode_records(newer, sources.find_plan, sources.find_fragment);
  REQUIRE_FALSE(back.ok());
  CHECK_THAT(back.error().message, Catch::Contains("newer"));
}

TEST_CASE("crc32c equals that of RFC 3720") {
  CHECK(crc32c("123456789") == 0xe3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);
}

TEST_CASE("bytes of version 11, with missing results, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("11", of_lost_results(), sources);
  const auto& retry = std::get<core::RetryRequested>(back.at(0).event);
  CHECK(retry.run == "run-1");
  CHECK_FALSE(retry.has_unit);
  CHECK(retry.lost == std::vector<core::UnitId>{2, 7});
}

TEST_CASE("bytes of version 12, with dead workers and excluded machines, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("12", of_deaths(), sources);
  CHECK(std::get<core::WorkerJoined>(back.at(0).event).is_restarted);
  const auto& failed = std::get<core::AttemptFailed>(back.at(1).event);
  CHECK(failed.rank == 3);
  CHECK(failed.worker_died);
  CHECK(std::get<core::WorkerLost>(back.at(2).event).has_died);
  const auto& timer = std::get<core::TimerFired>(back.at(3).event);
  CHECK(timer.run == "");
  CHECK(timer.unit == 1);
  CHECK(timer.serial == 2);
  CHECK(std::get<core::WorkersAnnounced>(back.at(4).event).count == 4);
}

TEST_CASE("bytes of version 13, with a GPU that is given to a worker, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("13", of_given_gpus(), sources);
  const auto& found = std::get<core::GpusFound>(back.at(0).event);
  CHECK(found.worker == 2);
  CHECK(found.gpus.at(0).uuid == "GPU-a");
}

TEST_CASE("bytes of version 14, with a missing input, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("14", of_gone_inputs(), sources);
  CHECK(core::is_lasting(std::get<core::AttemptFailed>(back.at(0).event).failure));
}

/// Between schemas from 15 on, only the number of the schema and the checksum differ.
std::string content(const std::string& hex) { return hex.substr(4, hex.size() - 12); }

TEST_CASE(
    "bytes of version 15, with each of its kinds of events, replay and are written unchanged") {
  Sources sources;
  std::vector<core::Record> records = one_of_each(sources);
  for (const auto& more :
       {of_gpus(), of_workers(), of_disconnected_workers(), of_draining_workers(), of_joined_gpus(),
        of_named(), of_failed_gpus(), of_lost_results(), of_deaths(), of_given_gpus(),
        of_gone_inputs(), of_growing_gangs(), of_gangs()})
    records.insert(records.end(), more.begin(), more.end());
  for (size_t i = 0; i < records.size(); i++) records[i].sequence = i + 1;
  std::set<size_t> kinds;
  for (const core::Record& record : records) kinds.insert(record.event.index());
  size_t shared = 1;  // of_rollovers() has a timer, which is an older kind
  size_t newer = of_ignored_failures().size() + of_resources().size() + of_rollovers().size() +
                 of_scaling(sources).size() + of_budgets().size() - shared;
  CHECK(kinds.size() + newer == std::variant_size_v<core::Event>);
  replayed("15", records, sources);
  CHECK(content(hex(encode_records(records))) == content(pinned("journal-15")));
}

TEST_CASE("bytes of version 16, with a missing input of a task, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("16", of_ignored_failures(), sources);
  const auto& missing = std::get<core::InputsMissing>(back.at(0).event);
  CHECK(missing.run == "run-1");
  CHECK(missing.unit == 4);
  CHECK(missing.why == "one of its arguments is flow.missing");
}

TEST_CASE("bytes of version 17, with tags of instances, replay") {
  Sources sources;
  std::vector<core::Record> back = replayed("17", of_tags(), sources);
  const auto& expanded = std::get<core::MapExpanded>(back.at(0).event);
  CHECK(expanded.count == 2);
  CHECK(expanded.tags == std::vector<std::string>{"s1", "s 2"});
  CHECK(content(hex(encode_records(of_tags()))) == content(pinned("journal-17")));
}

TEST_CASE("bytes of version 18, with computed resources, replay and are written unchanged") {
  Sources sources;
  std::vector<core::Record> back = replayed("18", of_resources(), sources);
  const auto& event = std::get<core::ResourcesComputed>(back.at(0).event);
  CHECK(event.unit == 4);
  CHECK(event.computed.attempt == 2);
  CHECK(event.computed.resources.memory_bytes == 3000);
  CHECK(event.computed.resources.custom_resources == ResourceQuantities{{"fpga", 500}});
  CHECK(event.computed.timeout_ms == 60'000);
  CHECK(content(hex(encode_records(of_resources()))) == content(pinned("journal-18")));
}

TEST_CASE("bytes of version 19, with rollovers, replay and are written unchanged") {
  Sources sources;
  std::vector<core::Record> back = replayed("19", of_rollovers(), sources);
  const auto& shifted = std::get<core::TrafficShifted>(back.at(0).event);
  CHECK(shifted.run == "run-1");
  CHECK(shifted.step == 2);
  CHECK(shifted.error == "unreachable");
  const auto& measured = std::get<core::TrafficMeasured>(back.at(1).event);
  CHECK(measured.step == 2);
  CHECK(measured.requests == 300);
  CHECK(measured.errors == 4);
  CHECK(measured.p50_us == 1500);
  CHECK(measured.p99_us == 20'000);
  CHECK(measured.error == "gone");
  CHECK(std::get<core::TimerFired>(back.at(2).event).unit == kNoNode);
  CHECK(content(hex(encode_records(of_rollovers()))) == content(pinned("journal-19")));
}

TEST_CASE("bytes of version 19, with an engine that restarts services, are written unchanged") {
  Sources sources;
  std::vector<core::Record> back = replayed("19-services", of_restarted_services(), sources);
  CHECK(std::get<core::EngineStarted>(back.at(0).event).restarts_services);
  CHECK(content(hex(encode_records(of_restarted_services()))) ==
        content(pinned("journal-19-services")));
}

TEST_CASE("bytes of version 20, with scaled replicas and gates, replay and are written unchanged") {
  Sources sources;
  std::vector<core::Record> back = replayed("20", of_scaling(sources), sources);
  const auto& scaled = std::get<core::ReplicasScaled>(back.at(0).event);
  CHECK(scaled.run == "run-1");
  CHECK(scaled.unit == 3);
  CHECK(scaled.replicas == 4);
  const auto& called = std::get<core::GateCalled>(back.at(1).event);
  CHECK(called.step == 1);
  CHECK(called.fragment == sources.fragment);
  CHECK(called.fragment_digest == sources.fragment_digest);
  const auto& answered = std::get<core::GateAnswered>(back.at(2).event);
  CHECK(answered.step == 1);
  CHECK(!answered.passes);
  CHECK(answered.why == "`check` returned false");
  CHECK(content(hex(encode_records(of_scaling(sources)))) == content(pinned("journal-20")));
}

TEST_CASE("bytes of version 21, with what attempts used, replay and are written unchanged") {
  Sources sources;
  std::vector<core::Record> expected = of_usage(sources);
  std::vector<core::Record> back = replayed("21", expected, sources);
  CHECK(std::get<core::RunSubmitted>(back.at(0).event).user == "ada");
  const auto& succeeded = std::get<core::AttemptSucceeded>(back.at(1).event);
  CHECK(succeeded.usage == std::get<core::AttemptSucceeded>(expected[1].event).usage);
  const auto& failed = std::get<core::AttemptFailed>(back.at(2).event);
  CHECK(failed.usage.stage_us == 0);  // known, unlike the others
  CHECK(failed.usage.cpu_us == -1);
  CHECK(std::get<core::AttemptWaiting>(back.at(3).event).usage == succeeded.usage);
  CHECK(std::get<core::AttemptStopped>(back.at(4).event).usage == succeeded.usage);
  CHECK(std::get<core::AttemptStopped>(back.at(5).event).usage == core::AttemptUsage{});
  CHECK(content(hex(encode_records(expected))) == content(pinned("journal-21")));
}

TEST_CASE("bytes of version 22, with budgets of runs, replay and are written unchanged") {
  Sources sources;
  std::vector<core::Record> expected = of_budgets();
  std::vector<core::Record> back = replayed("22", expected, sources);
  const auto& set = std::get<core::BudgetSet>(back.at(0).event);
  CHECK(set.run == "run-1");
  CHECK(set.terms == std::get<core::BudgetSet>(expected[0].event).terms);
  CHECK(std::get<core::BudgetReached>(back.at(1).event).run == "run-1");
  CHECK(content(hex(encode_records(expected))) == content(pinned("journal-22")));
}

TEST_CASE("bytes of version 23, with who asked, replay and are written unchanged") {
  Sources sources;
  std::vector<core::Record> expected = of_actions(sources);
  std::vector<core::Record> back = replayed("23", expected, sources);
  CHECK(std::get<core::RunSubmitted>(back.at(0).event).actions ==
        std::get<core::RunSubmitted>(expected[0].event).actions);
  CHECK(std::get<core::SignalReceived>(back.at(1).event).by == "ada@node1");
  CHECK(std::get<core::CancelRequested>(back.at(2).event).by == "ada@node1");
  CHECK(std::get<core::StopRequested>(back.at(3).event).by == "bob@node2");
  CHECK(std::get<core::ServeEnded>(back.at(4).event).by == "bob@node2");
  const auto& retry = std::get<core::RetryRequested>(back.at(5).event);
  CHECK(retry.by == "eve@node3");
  CHECK(retry.is_retry);
  CHECK(content(hex(encode_records(expected))) == content(pinned("journal-23")));
}

TEST_CASE("bytes of version 24, with the use of GPUs, replay and are written unchanged") {
  Sources sources;
  std::vector<core::Record> expected = of_gpu_use();
  std::vector<core::Record> back = replayed("24", expected, sources);
  const auto& succeeded = std::get<core::AttemptSucceeded>(back.at(0).event);
  CHECK(succeeded.usage == std::get<core::AttemptSucceeded>(expected[0].event).usage);
  const auto& stopped = std::get<core::AttemptStopped>(back.at(1).event);
  CHECK(stopped.usage == std::get<core::AttemptStopped>(expected[1].event).usage);
  CHECK(stopped.usage.gpu_energy_mj == -1);
  CHECK(content(hex(encode_records(expected))) == content(pinned("journal-24")));
}

TEST_CASE(
    "bytes of version 25, with waits of ranks and traffic, replay and are written unchanged") {
  Sources sources;
  std::vector<core::Record> expected = of_waits();
  std::vector<core::Record> back = replayed("25", expected, sources);
  const auto& succeeded = std::get<core::AttemptSucceeded>(back.at(0).event);
  CHECK(succeeded.usage == std::get<core::AttemptSucceeded>(expected[0].event).usage);
  const auto& stopped = std::get<core::AttemptStopped>(back.at(1).event);
  CHECK(stopped.usage.moved_bytes == 0);  // known, unlike the others
  CHECK(stopped.usage.leave_wait_us == -1);
  CHECK(hex(encode_records(expected)) == pinned("journal-25"));
}
