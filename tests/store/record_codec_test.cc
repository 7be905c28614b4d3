// Records of schema 15: random records of every kind survive field by field, and each kind of
// damage is an error that names the record and the field.
#include <catch2/catch.hpp>
#include <limits>
#include <random>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine/store/checksum.hpp"
#include "engine/store/journal_schema.hpp"
#include "engine/store/store.hpp"

using namespace flow;

namespace {

std::shared_ptr<const Plan> any_plan(const Digest&) {
  static const auto plan = std::make_shared<const Plan>();
  return plan;
}

std::shared_ptr<const PlanFragment> any_fragment(const Digest&) {
  static const auto fragment = std::make_shared<const PlanFragment>();
  return fragment;
}

template <typename Make>
std::vector<std::invoke_result_t<Make, size_t>> list(size_t size, const Make& make) {
  std::vector<std::invoke_result_t<Make, size_t>> values;
  for (size_t i = 0; i < size; i++) values.push_back(make(i));
  return values;
}

/// Random values of the types that events use.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t below(uint64_t n) { return engine_() % n; }
  bool flag() { return below(2) == 1; }
  /// Small and large numbers, and the maximum.
  uint32_t u32() {
    switch (below(4)) {
      case 0:
        return static_cast<uint32_t>(below(4));
      case 1:
        return std::numeric_limits<uint32_t>::max();
      default:
        return static_cast<uint32_t>(engine_());
    }
  }
  uint64_t u64() { return flag() ? below(4) : engine_(); }
  int64_t amount() { return static_cast<int64_t>(u64() >> 1); }
  int32_t milli() { return static_cast<int32_t>(u32() >> 1); }
  int64_t i64() { return static_cast<int64_t>(u64()); }
  core::WorkerId worker() { return static_cast<core::WorkerId>(below(core::kWorkersMax)); }
  std::string text() {
    std::string text(1 + below(20), '\0');
    for (char& c : text) c = static_cast<char>(below(256));
    return text;
  }
  std::string text_or_none() { return flag() ? text() : ""; }
  Digest digest() {
    Digest digest;
    for (uint8_t& byte : digest.bytes) byte = static_cast<uint8_t>(below(256));
    return flag() ? digest : Digest{};
  }
  std::string run() { return below(4) == 0 ? text() : "run-" + std::to_string(below(3)); }
  core::AttemptId attempt() { return {run(), u32(), u32(), u64()}; }
  core::Failure failure() {
    auto cause = static_cast<core::Cause>(below(static_cast<uint64_t>(core::kCauseLast) + 1));
    return {cause, text_or_none(), text_or_none(), static_cast<int32_t>(u32())};
  }
  core::AttemptUsage usage() {
    auto known = [&] { return flag() ? amount() : int64_t{-1}; };
    return {known(), known(), known(), known(), known(), known(),
            known(), known(), known(), known(), known(), known()};
  }
  std::vector<std::string> uuids() {
    return list(below(4), [&](size_t) { return text_or_none(); });
  }
  std::vector<Gpu> gpus() {
    return list(below(4), [&](size_t i) {
      Gpu gpu{u32(),    "GPU-" + std::to_string(i), text_or_none(), text_or_none(),
              amount(), milli() - milli(),          flag()};
      gpu.nvlink = static_cast<int32_t>(below(5)) - 1;
      gpu.fabric = text_or_none();
      gpu.fault = text_or_none();
      gpu.is_dead = !gpu.fault.empty() && flag();
      return gpu;
    });
  }
  std::vector<core::Placement> ranks() {
    return list(below(4), [&](size_t) { return core::Placement{worker(), uuids()}; });
  }
  Labels labels() {
    return list(below(4),
                [&](size_t i) { return std::pair("l" + std::to_string(i), text_or_none()); });
  }
  ResourceQuantities quantities() {
    return list(below(4), [&](size_t i) {
      return std::pair("r" + std::to_string(i), static_cast<int64_t>(1 + below(1000)));
    });
  }

 private:
  std::mt19937_64 engine_;
};

core::InputsResolved resolved(Random& r) {
  core::InputsResolved e{r.run(), r.u32(), r.digest(), r.flag(), {}, nullptr, {}};
  if (e.hit) e.result = r.digest();
  if (r.flag()) e.fragment_digest = r.digest(), e.fragment = any_fragment({});
  return e;
}

core::GateCalled gate_called(Random& r) { return {r.run(), r.u32(), any_fragment({}), r.digest()}; }

core::AttemptSucceeded succeeded(Random& r) {
  core::AttemptSucceeded e{r.attempt(), r.digest(), nullptr, {}, r.i64(), r.flag(), r.usage()};
  if (r.flag()) e.fragment_digest = r.digest(), e.fragment = any_fragment({});
  return e;
}

core::WorkerJoined joined(Random& r) {
  core::WorkerInfo worker{r.text(), r.milli(), r.amount(), r.gpus(), r.labels(), r.quantities()};
  return {worker, list(r.below(4), [&](size_t) { return r.attempt(); }), r.flag()};
}

core::TimerFired timer(Random& r) { return {r.flag() ? r.run() : "", r.u32(), r.u32()}; }

core::RetryRequested retry(Random& r) {
  bool has_unit = r.flag();
  return {r.run(),
          has_unit,
          has_unit ? r.u32() : 0,
          list(r.below(4), [&](size_t) { return r.u32(); }),
          r.text_or_none(),
          r.flag()};
}

core::Action action(Random& r) {
  auto kind =
      static_cast<core::ActionKind>(1 + r.below(static_cast<uint64_t>(core::kActionKindLast)));
  return {kind, r.i64(), r.text(), r.text_or_none()};
}

/// One of each kind, in the order of core::Event.
std::vector<core::Event> random_events(Random& r) {
  return {
      core::EngineStarted{r.u64(), r.milli(), r.amount(), r.quantities(), r.flag(), r.flag()},
      core::RunSubmitted{r.run(), r.text_or_none(), r.digest(), any_plan({}), r.milli(), r.flag(),
                         r.flag(), r.text_or_none(),
                         list(r.below(4), [&](size_t) { return action(r); })},
      resolved(r),
      core::InputsFailed{r.run(), r.u32(), r.failure()},
      core::MapExpanded{r.run(), r.u32(), r.u32(), r.uuids()},
      core::WhenResolved{r.run(), r.u32(), r.flag()},
      core::ValueGathered{r.run(), r.u32(), r.digest()},
      core::Assigned{r.attempt(), r.uuids(), r.worker(), r.ranks(), {r.milli(), r.amount()}},
      core::AttemptRequeued{r.attempt()},
      succeeded(r),
      core::AttemptFailed{r.attempt(), r.failure(), r.u32(), r.flag(), r.usage()},
      core::AttemptWaiting{r.attempt(), r.text(), r.text(), r.i64(), r.usage()},
      core::AttemptStopped{r.attempt(), r.usage()},
      core::ServiceReady{r.attempt(), r.text()},
      core::StepSaved{r.attempt(), r.text(), r.digest()},
      core::CheckpointSaved{r.attempt(), r.digest()},
      core::SignalReceived{r.run(), r.text(), r.digest(), r.text_or_none()},
      timer(r),
      core::CancelRequested{r.run(), r.text_or_none()},
      core::StopRequested{r.run(), r.text_or_none()},
      core::ServeEnded{r.run(), r.text_or_none()},
      retry(r),
      core::RunDeleted{r.run()},
      core::GpusFound{r.gpus(), r.worker()},
      joined(r),
      core::WorkerDisconnected{r.worker(), r.text_or_none()},
      core::WorkerLost{r.worker(), r.text_or_none(), r.flag()},
      core::WorkerDraining{r.worker(), r.text_or_none()},
      core::ResizeRequested{r.attempt(), r.u32()},
      core::GpuFailed{r.worker(), r.text(), r.text(), r.flag()},
      core::WorkersAnnounced{static_cast<uint32_t>(r.below(core::kWorkersMax + 1))},
      core::InputsMissing{r.run(), r.u32(), r.text()},
      core::ResourcesComputed{r.run(),
                              r.u32(),
                              {r.u32(),
                               {r.milli(), r.amount(), r.milli(), r.amount(), r.text(), r.text(),
                                1 + static_cast<uint32_t>(r.below(9)), r.u32(), r.quantities()},
                               r.amount()}},
      core::TrafficShifted{r.run(), r.u32(), r.text()},
      core::TrafficMeasured{r.run(), r.u32(), r.u64(), r.u64(), r.amount(), r.amount(), r.text()},
      core::ReplicasScaled{r.run(), r.u32(), 1 + static_cast<uint32_t>(r.below(9))},
      gate_called(r),
      core::GateAnswered{r.run(), r.u32(), r.flag(), r.text_or_none()},
      core::BudgetSet{r.run(),
                      {{r.text(),
                        {r.amount(), kNoPrice, {{r.text(), r.amount()}}, r.amount()},
                        {{r.text(), r.text_or_none(), {kNoPrice, r.amount(), {}, kNoPrice}}}},
                       1 + r.amount() / 2,
                       r.amount()}},
      core::BudgetReached{r.run()}};
}

// ---- all fields of an event, for comparisons

auto fields(const core::Failure& f) { return std::tuple(f.cause, f.message, f.evidence, f.code); }
auto fields(const core::EngineStarted& e) {
  return std::tuple(e.epoch, e.cpus_milli, e.memory_bytes, e.custom_resources, e.leads_workers,
                    e.restarts_services);
}
auto fields(const core::RunSubmitted& e) {
  return std::tuple(e.run, e.name, e.plan_digest, e.plan, e.jobs, e.fail_fast, e.fresh, e.user,
                    e.actions);
}
auto fields(const core::InputsResolved& e) {
  return std::tuple(e.run, e.unit, e.key, e.hit, e.result, e.fragment, e.fragment_digest);
}
auto fields(const core::InputsFailed& e) { return std::tuple(e.run, e.unit, fields(e.failure)); }
auto fields(const core::InputsMissing& e) { return std::tuple(e.run, e.unit, e.why); }
auto fields(const core::AttemptResources& e) {
  const Resources& r = e.resources;
  return std::tuple(e.attempt, r.cpus_milli, r.memory_bytes, r.gpus_milli, r.gpu_memory_bytes,
                    r.gpu_model, r.where, r.ranks, r.ranks_max, r.custom_resources, e.timeout_ms);
}
auto fields(const core::ResourcesComputed& e) {
  return std::tuple(e.run, e.unit, fields(e.computed));
}
auto fields(const core::MapExpanded& e) { return std::tuple(e.run, e.unit, e.count, e.tags); }
auto fields(const core::WhenResolved& e) { return std::tuple(e.run, e.unit, e.then_branch); }
auto fields(const core::ValueGathered& e) { return std::tuple(e.run, e.unit, e.result); }
auto fields(const core::Assigned& e) {
  return std::tuple(e.id, e.gpus, e.worker, e.others, e.share.cpus_milli, e.share.memory_bytes);
}
auto fields(const core::AttemptUsage& e) {
  return std::tuple(e.peak_memory, e.cpu_us, e.read_bytes, e.written_bytes, e.stage_us, e.commit_us,
                    e.gpu_used_us, e.gpu_measured_us, e.gpu_energy_mj);
}
auto fields(const core::AttemptSucceeded& e) {
  return std::tuple(e.id, e.result, e.fragment, e.fragment_digest, e.duration_us, e.waited,
                    fields(e.usage));
}
auto fields(const core::AttemptFailed& e) {
  return std::tuple(e.id, fields(e.failure), e.rank, e.worker_died, fields(e.usage));
}
auto fields(const core::AttemptWaiting& e) {
  return std::tuple(e.id, e.signal, e.wait_name, e.deadline, fields(e.usage));
}
auto fields(const core::AttemptStopped& e) { return std::tuple(e.id, fields(e.usage)); }
auto fields(const core::ServiceReady& e) { return std::tuple(e.id, e.url); }
auto fields(const core::StepSaved& e) { return std::tuple(e.id, e.name, e.value); }
auto fields(const core::CheckpointSaved& e) { return std::tuple(e.id, e.value); }
auto fields(const core::SignalReceived& e) { return std::tuple(e.run, e.name, e.value, e.by); }
auto fields(const core::CancelRequested& e) { return std::tuple(e.run, e.by); }
auto fields(const core::StopRequested& e) { return std::tuple(e.run, e.by); }
auto fields(const core::ServeEnded& e) { return std::tuple(e.run, e.by); }
auto fields(const core::TimerFired& e) { return std::tuple(e.run, e.unit, e.serial); }
auto fields(const core::RetryRequested& e) {
  return std::tuple(e.run, e.has_unit, e.unit, e.lost, e.by, e.is_retry);
}
auto fields(const core::GpusFound& e) { return std::tuple(e.gpus, e.worker); }
auto fields(const core::WorkerJoined& e) {
  const core::WorkerInfo& w = e.worker;
  return std::tuple(w.name, w.cpus_milli, w.memory_bytes, w.gpus, w.labels, w.custom_resources,
                    e.attempts, e.is_restarted);
}
auto fields(const core::WorkerDisconnected& e) { return std::tuple(e.worker, e.why); }
auto fields(const core::WorkerLost& e) { return std::tuple(e.worker, e.why, e.has_died); }
auto fields(const core::WorkerDraining& e) { return std::tuple(e.worker, e.why); }
auto fields(const core::ResizeRequested& e) { return std::tuple(e.id, e.ranks); }
auto fields(const core::GpuFailed& e) { return std::tuple(e.worker, e.uuid, e.fault, e.is_dead); }
auto fields(const core::WorkersAnnounced& e) { return std::tuple(e.count); }
auto fields(const core::TrafficShifted& e) { return std::tuple(e.run, e.step, e.error); }
auto fields(const core::TrafficMeasured& e) {
  return std::tuple(e.run, e.step, e.requests, e.errors, e.p50_us, e.p99_us, e.error);
}
auto fields(const core::ReplicasScaled& e) { return std::tuple(e.run, e.unit, e.replicas); }
auto fields(const core::GateCalled& e) {
  return std::tuple(e.run, e.step, e.fragment, e.fragment_digest);
}
auto fields(const core::BudgetSet& e) {
  const core::BudgetTerms& terms = e.terms;
  auto of_rates = [](const Rates& rates) {
    return std::tuple(rates.cpu_hour, rates.memory_gb_hour, rates.gpu_hour, rates.egress_gb);
  };
  const LabelRates& label = terms.prices.labels.at(0);
  return std::tuple(e.run, terms.prices.currency, of_rates(terms.prices.base), label.name,
                    label.value, of_rates(label.rates), terms.limit_nano, terms.before_nano);
}
auto fields(const core::GateAnswered& e) { return std::tuple(e.run, e.step, e.passes, e.why); }
template <typename OfAttempt>
auto fields(const OfAttempt& e) -> decltype(std::tuple(e.id)) {
  return std::tuple(e.id);
}
template <typename OfRun>
auto fields(const OfRun& e) -> decltype(std::tuple(e.run)) {
  return std::tuple(e.run);
}

bool are_equal(const core::Event& a, const core::Event& b) {
  return a.index() == b.index() && std::visit(
                                       [&](const auto& event) {
                                         using Kind = std::decay_t<decltype(event)>;
                                         return fields(event) == fields(std::get<Kind>(b));
                                       },
                                       a);
}

// ---- bytes of messages, made without the codec

std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(number | 0x80);
  return bytes + static_cast<char>(number);
}

std::string field(int number, uint64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(value);
}

std::string field(int number, const std::string& value) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(value.size()) + value;
}

/// The error of record 7 of this kind; its batch has the run "r" and an empty one.
std::string problem_of(int kind, const std::string& event) {
  std::string record = field(1, 7) + (kind == 0 ? "" : field(kind, event));
  std::string bytes = field(1, 15) + field(2, "r") + field(2, "") + field(4, record);
  seal(bytes);
  auto back = decode_records(bytes, any_plan, any_fragment);
  return back.ok() ? "" : back.error().message;
}

}  // namespace

TEST_CASE("random records of every kind are written, read and written to the same bytes") {
  Random random(20261121);
  for (int round = 0; round < 300; round++) {
    std::vector<core::Record> records;
    std::vector<core::Event> events = random_events(random);
    REQUIRE(events.size() == std::variant_size_v<core::Event>);
    for (core::Event& event : events) {
      REQUIRE(event.index() == records.size());
      records.push_back({random.u64(), random.i64(), std::move(event)});
    }
    std::string bytes = encode_records(records);
    auto back = decode_records(bytes, any_plan, any_fragment);
    if (!back.ok()) FAIL(back.error().message);
    REQUIRE(back->size() == records.size());
    for (size_t i = 0; i < records.size(); i++) {
      INFO("round " << round << ", kind " << i);
      CHECK((*back)[i].sequence == records[i].sequence);
      CHECK((*back)[i].at == records[i].at);
      CHECK(are_equal((*back)[i].event, records[i].event));
    }
    CHECK(encode_records(*back) == bytes);
  }
}

TEST_CASE("a damaged record is rejected with its sequence number and its field") {
  const std::string digest(32, 'd'), id = field(1, 1) + field(3, 1), attempt = field(1, id);
  const uint64_t minus_one = std::numeric_limits<uint64_t>::max();
  const std::string failure = field(1, 2);
  struct Damage {
    int kind;
    std::string event;
    std::string problem;
  };
  const Damage damages[] = {
      {0, "", "(no event) is damaged: `event` is missing or of a kind"},
      {99, "", "(no event) is damaged: `event` is missing or of a kind"},
      {3, field(2, minus_one), "(EngineStarted) is damaged: `cpus_milli` is negative: -1"},
      {3, field(3, minus_one), "`memory_bytes` is negative"},
      {3, field(4, field(1, "fpga")), "`custom_resources` have a wrong name or quantity"},
      {4, field(3, digest), "(RunSubmitted) is damaged: `run` is missing"},
      {4, field(1, 3) + field(3, digest), "`run` is not one of the batch"},
      {4, field(1, 2) + field(3, digest), "`run` is empty"},
      {4, field(1, 1), "`plan_digest` is missing"},
      {4, field(1, 1) + field(3, digest) + field(4, minus_one), "`jobs` is negative"},
      {5, field(1, 1), "(InputsResolved) is damaged: `key` is missing"},
      {5, field(1, 1) + field(3, "short"), "`key` has 5 bytes, a digest has 32"},
      {5, field(1, 1) + field(3, digest) + field(4, "x"), "`result` has 1 bytes"},
      {5, field(1, 1) + field(3, digest) + field(5, "x"), "`fragment_digest` has 1 bytes"},
      {6, field(1, 1), "(InputsFailed) is damaged: `failure` is missing"},
      {6, field(1, 1) + field(3, field(1, static_cast<uint64_t>(core::kCauseLast) + 1)),
       "`failure` has an unknown cause"},
      {7, "", "(MapExpanded) is damaged: `run` is missing"},
      {9, field(1, 1), "(ValueGathered) is damaged: `result` is missing"},
      {10, "", "(Assigned) is damaged: `id` is missing"},
      {10, field(1, ""), "`run` is missing"},
      {10, attempt + field(2, 4096), "`worker` is 4096, the limit is 4095"},
      {10, attempt + field(2, 70'000), "`worker` is too large: 70000"},
      {10, attempt + field(4, field(1, 5000)), "`others` have an unknown worker"},
      {10, attempt + field(5, minus_one), "`share_cpus_milli` is negative"},
      {10, attempt + field(6, minus_one), "`share_memory_bytes` is negative"},
      {12, attempt, "(AttemptSucceeded) is damaged: `result` is missing"},
      {13, attempt, "(AttemptFailed) is damaged: `failure` is missing"},
      {13, field(2, failure), "`id` is missing"},
      {12, attempt + field(2, digest) + field(6, field(1, minus_one)),
       "(AttemptSucceeded) is damaged: `usage` has a negative number"},
      {13, attempt + field(2, failure) + field(5, field(2, minus_one)), "`usage` has a negative"},
      {14, attempt + field(2, "s") + field(3, "w") + field(5, field(5, minus_one)),
       "(AttemptWaiting) is damaged: `usage` has a negative number"},
      {15, attempt + field(2, field(6, minus_one)),
       "(AttemptStopped) is damaged: `usage` has a negative number"},
      {14, attempt + field(3, "w"), "(AttemptWaiting) is damaged: `signal` is missing"},
      {14, attempt + field(2, "s"), "`wait_name` is missing"},
      {16, attempt, "(ServiceReady) is damaged: `url` is missing"},
      {17, attempt + field(3, digest), "(StepSaved) is damaged: `name` is missing"},
      {18, attempt, "(CheckpointSaved) is damaged: `value` is missing"},
      {19, field(1, 1) + field(3, digest), "(SignalReceived) is damaged: `name` is missing"},
      {20, field(2, 3), "(TimerFired) is damaged: `run` is missing"},
      {20, field(1, 1) + field(4, 3), "`worker` is set, though the timer is that of a unit"},
      {24, "", "(RetryRequested) is damaged: `run` is missing"},
      {26, field(2, ""), "(GpusFound) is damaged: `gpus` have a device that is damaged"},
      {27, "", "(WorkerJoined) is damaged: `name` is missing"},
      {27, field(1, "w") + field(2, minus_one), "`cpus_milli` is negative"},
      {27, field(1, "w") + field(5, ""), "`labels` have an empty or repeated name"},
      {29, field(1, 4096), "(WorkerLost) is damaged: `worker` is 4096"},
      {31, field(2, 2), "(ResizeRequested) is damaged: `id` is missing"},
      {32, field(3, "f"), "(GpuFailed) is damaged: `uuid` is missing"},
      {32, field(2, "u"), "`fault` is missing"},
      {36, field(2, 1), "(TrafficShifted) is damaged: `run` is missing"},
      {37, field(2, 1), "(TrafficMeasured) is damaged: `run` is missing"},
      {37, field(1, 1) + field(5, minus_one), "`p50_us` is negative"},
      {37, field(1, 1) + field(6, minus_one), "`p99_us` is negative"},
      {38, field(1, 1), "(ReplicasScaled) is damaged: `replicas` is missing"},
      {39, field(1, 1), "(GateCalled) is damaged: `fragment_digest` is missing"},
      {40, field(2, 1), "(GateAnswered) is damaged: `run` is missing"},
      {41, field(1, 1), "`terms` have a wrong amount or no currency"},
      {42, "", "(BudgetReached) is damaged: `run` is missing"},
      {33, field(1, 4097), "(WorkersAnnounced) is damaged: `count` is 4097, the limit is 4096"},
  };
  for (const Damage& damage : damages) {
    std::string problem = problem_of(damage.kind, damage.event);
    CHECK_THAT(problem, Catch::StartsWith("the journal's record 7 ("));
    CHECK_THAT(problem, Catch::Contains(damage.problem));
  }
  CHECK(problem_of(13, attempt + field(2, failure)) == "");
  CHECK(problem_of(3, "") == "");
}

TEST_CASE("a record that names an unknown plan or list of calls is an error") {
  core::RunSubmitted submitted{"r", "", sha256("p"), any_plan({}), 0, false, false};
  core::AttemptSucceeded succeeded{{"r", 0, 1, 1}, sha256("v"), any_fragment({}), sha256("f")};
  FindPlan no_plan = [](const Digest&) { return nullptr; };
  FindFragment no_fragment = [](const Digest&) { return nullptr; };
  auto back = decode_records(encode_records({{3, 0, submitted}}), no_plan, no_fragment);
  REQUIRE_FALSE(back.ok());
  CHECK(back.error().message == "the journal's record 3 names the plan " + sha256("p").hex() +
                                    ", which the state does not hold");
  back = decode_records(encode_records({{4, 0, succeeded}}), no_plan, no_fragment);
  REQUIRE_FALSE(back.ok());
  CHECK(back.error().message == "the journal's record 4 names the list of calls " +
                                    sha256("f").hex() + ", which the state does not hold");
}

TEST_CASE("a batch without a schema is rejected, and the table ends with the newest schema") {
  std::string bytes = field(4, field(1, 7));
  seal(bytes);
  auto back = decode_records(bytes, any_plan, any_fragment);
  REQUIRE_FALSE(back.ok());
  CHECK(back.error().message == "a batch of the journal has no schema");
  CHECK(kJournalSchema == 25);
  CHECK_FALSE(check_schema(kJournalSchema + 1, "journal").ok());
  CHECK(check_schema(kJournalSchema, "journal").ok());
  CHECK(check_schema(1, "journal").ok());
}
