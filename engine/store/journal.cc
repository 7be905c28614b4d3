// Encodes and decodes records. Strict: bytes of a newer or defective writer are an error.
#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include <algorithm>
#include <map>

#include "engine/core/gpu_accounting.hpp"
#include "engine/core/retry.hpp"
#include "engine/core/workers.hpp"
#include "engine/store/checksum.hpp"
#include "engine/store/record_codec.hpp"

namespace flow {

namespace {

std::string bytes_of(const Digest& digest) { return std::string(digest.view()); }

void put_attempt(const core::AttemptId& id, journal::Record& m) {
  m.set_unit(id.unit);
  m.set_attempt(id.attempt);
  m.set_epoch(id.epoch);
}

void put_share(const core::Share& share, journal::Record& m) {
  m.set_number2(share.memory_bytes);
  m.set_number3(share.cpus_milli);
}

void put_offer(const core::AttemptId& id, journal::Offer& m) {
  m.set_run(id.run);
  m.set_unit(id.unit);
  m.set_attempt(id.attempt);
  m.set_epoch(id.epoch);
}

/// Fills everything but sequence, time and run; returns the run's id.
struct Writer {
  journal::Record& m;
  static inline const std::string kNone;

  const std::string& operator()(const core::EngineStarted& e) {
    m.set_type(journal::ENGINE_STARTED);
    m.set_epoch(e.epoch);
    m.set_number(e.cpus_milli);
    m.set_number2(e.memory_bytes);
    m.set_flag(e.leads_workers);
    put_quantities(e.custom_resources, *m.mutable_custom_resources());
    return kNone;
  }
  const std::string& operator()(const core::RunSubmitted& e) {
    m.set_type(journal::RUN_SUBMITTED);
    m.set_text(e.name);
    m.set_digest(bytes_of(e.plan_digest));
    m.set_number(e.jobs);
    m.set_flag(e.fail_fast);
    m.set_flag2(e.fresh);
    return e.run;
  }
  const std::string& operator()(const core::InputsResolved& e) {
    m.set_type(journal::INPUTS_RESOLVED);
    m.set_unit(e.unit);
    m.set_digest(bytes_of(e.key));
    m.set_flag(e.hit);
    if (e.hit) m.set_digest2(bytes_of(e.result));
    if (e.fragment) m.set_digest3(bytes_of(e.fragment_digest));
    return e.run;
  }
  const std::string& operator()(const core::InputsFailed& e) {
    m.set_type(journal::INPUTS_FAILED);
    m.set_unit(e.unit);
    put_failure(e.failure, *m.mutable_failure());
    return e.run;
  }
  const std::string& operator()(const core::MapExpanded& e) {
    m.set_type(journal::MAP_EXPANDED);
    m.set_unit(e.unit);
    m.set_number(e.count);
    return e.run;
  }
  const std::string& operator()(const core::WhenResolved& e) {
    m.set_type(journal::WHEN_RESOLVED);
    m.set_unit(e.unit);
    m.set_flag(e.then_branch);
    return e.run;
  }
  const std::string& operator()(const core::ValueGathered& e) {
    m.set_type(journal::VALUE_GATHERED);
    m.set_unit(e.unit);
    m.set_digest(bytes_of(e.result));
    return e.run;
  }
  const std::string& operator()(const core::Assigned& e) {
    for (const std::string& uuid : e.gpus) m.add_gpus(uuid);
    m.set_number(e.worker);
    put_ranks(e.others, *m.mutable_others());
    put_share(e.share, m);
    return attempt(journal::ASSIGNED, e.id);
  }
  const std::string& operator()(const core::AttemptRequeued& e) {
    return attempt(journal::ATTEMPT_REQUEUED, e.id);
  }
  const std::string& operator()(const core::AttemptSucceeded& e) {
    m.set_digest(bytes_of(e.result));
    if (e.fragment) m.set_digest2(bytes_of(e.fragment_digest));
    m.set_number(e.duration_us);
    m.set_flag(e.waited);
    return attempt(journal::ATTEMPT_SUCCEEDED, e.id);
  }
  const std::string& operator()(const core::AttemptFailed& e) {
    put_failure(e.failure, *m.mutable_failure());
    m.set_number(e.rank);
    m.set_flag(e.worker_died);
    return attempt(journal::ATTEMPT_FAILED, e.id);
  }
  const std::string& operator()(const core::AttemptWaiting& e) {
    m.set_text(e.signal);
    m.set_text2(e.wait_name);
    m.set_number(e.deadline);
    return attempt(journal::ATTEMPT_WAITING, e.id);
  }
  const std::string& operator()(const core::AttemptStopped& e) {
    return attempt(journal::ATTEMPT_STOPPED, e.id);
  }
  const std::string& operator()(const core::ServiceReady& e) {
    m.set_text(e.url);
    return attempt(journal::SERVICE_READY, e.id);
  }
  const std::string& operator()(const core::StepSaved& e) {
    m.set_text(e.name);
    m.set_digest(bytes_of(e.value));
    return attempt(journal::STEP_SAVED, e.id);
  }
  const std::string& operator()(const core::CheckpointSaved& e) {
    m.set_digest(bytes_of(e.value));
    return attempt(journal::CHECKPOINT_SAVED, e.id);
  }
  const std::string& operator()(const core::SignalReceived& e) {
    m.set_type(journal::SIGNAL_RECEIVED);
    m.set_text(e.name);
    m.set_digest(bytes_of(e.value));
    return e.run;
  }
  const std::string& operator()(const core::TimerFired& e) {
    m.set_type(journal::TIMER_FIRED);
    m.set_unit(e.unit);
    m.set_number(e.serial);
    return e.run;
  }
  const std::string& operator()(const core::CancelRequested& e) {
    return plain(journal::CANCEL_REQUESTED, e.run);
  }
  const std::string& operator()(const core::StopRequested& e) {
    return plain(journal::STOP_REQUESTED, e.run);
  }
  const std::string& operator()(const core::ServeEnded& e) {
    return plain(journal::SERVE_ENDED, e.run);
  }
  const std::string& operator()(const core::RetryRequested& e) {
    m.set_flag(e.has_unit);
    m.set_unit(e.unit);
    for (core::UnitId unit : e.lost) m.add_missing(unit);
    return plain(journal::RETRY_REQUESTED, e.run);
  }
  const std::string& operator()(const core::RunDeleted& e) {
    return plain(journal::RUN_DELETED, e.run);
  }
  const std::string& operator()(const core::GpusFound& e) {
    m.set_number(e.worker);
    for (const Gpu& gpu : e.gpus) put_gpu(gpu, *m.add_machine_gpus());
    return plain(journal::GPUS_FOUND, kNone);
  }
  const std::string& operator()(const core::WorkerJoined& e) {
    m.set_text(e.worker.name);
    m.set_number(e.worker.cpus_milli);
    m.set_number2(e.worker.memory_bytes);
    for (const Gpu& gpu : e.worker.gpus) put_gpu(gpu, *m.add_machine_gpus());
    put_labels(e.worker.labels, *m.mutable_labels());
    put_quantities(e.worker.custom_resources, *m.mutable_custom_resources());
    for (const core::AttemptId& id : e.attempts) put_offer(id, *m.add_offers());
    m.set_flag(e.is_restarted);
    return plain(journal::WORKER_JOINED, kNone);
  }
  const std::string& operator()(const core::WorkerDisconnected& e) {
    m.set_number(e.worker);
    m.set_text(e.why);
    return plain(journal::WORKER_DISCONNECTED, kNone);
  }
  const std::string& operator()(const core::WorkerLost& e) {
    m.set_number(e.worker);
    m.set_text(e.why);
    m.set_flag(e.has_died);
    return plain(journal::WORKER_LOST, kNone);
  }
  const std::string& operator()(const core::WorkerDraining& e) {
    m.set_number(e.worker);
    m.set_text(e.why);
    return plain(journal::WORKER_DRAINING, kNone);
  }
  const std::string& operator()(const core::WorkersAnnounced& e) {
    m.set_number(e.count);
    return plain(journal::WORKERS_ANNOUNCED, kNone);
  }
  const std::string& operator()(const core::GpuFailed& e) {
    m.set_number(e.worker);
    m.set_text(e.fault);
    m.set_text2(e.uuid);
    m.set_flag(e.is_dead);
    return plain(journal::GPU_FAILED, kNone);
  }
  const std::string& operator()(const core::ResizeRequested& e) {
    m.set_number(e.ranks);
    return attempt(journal::RESIZE_REQUESTED, e.id);
  }

  const std::string& attempt(journal::Type type, const core::AttemptId& id) {
    m.set_type(type);
    put_attempt(id, m);
    return id.run;
  }
  const std::string& plain(journal::Type type, const std::string& run) {
    m.set_type(type);
    return run;
  }
};

}  // namespace

void put_failure(const core::Failure& failure, journal::Failure& m) {
  m.set_cause(static_cast<uint32_t>(failure.cause));
  m.set_message(failure.message);
  m.set_evidence(failure.evidence);
  m.set_code(failure.code);
}

bool get_failure(const journal::Failure& m, core::Failure& failure) {
  if (m.cause() > static_cast<uint32_t>(core::kCauseLast)) return false;
  failure.cause = static_cast<core::Cause>(m.cause());
  failure.message = m.message();
  failure.evidence = m.evidence();
  failure.code = m.code();
  return true;
}

void put_gpu(const Gpu& gpu, journal::Gpu& m) {
  m.set_index(gpu.index);
  m.set_uuid(gpu.uuid);
  m.set_name(gpu.name);
  m.set_pci(gpu.pci);
  m.set_memory_bytes(gpu.memory_bytes);
  m.set_numa(gpu.numa);
  m.set_is_mig(gpu.is_mig);
  m.set_nvlink(static_cast<uint32_t>(gpu.nvlink + 1));
  m.set_fabric(gpu.fabric);
  m.set_fault(gpu.fault);
  m.set_is_dead(gpu.is_dead);
}

bool get_gpus(const google::protobuf::RepeatedPtrField<journal::Gpu>& from,
              std::vector<Gpu>& gpus) {
  for (const journal::Gpu& m : from)
    gpus.push_back({m.index(), m.uuid(), m.name(), m.pci(), m.memory_bytes(), m.numa(), m.is_mig(),
                    static_cast<int32_t>(m.nvlink() - 1), m.fabric(), m.fault(), m.is_dead()});
  return core::are_sound(gpus);
}

void put_ranks(const std::vector<core::Placement>& ranks,
               google::protobuf::RepeatedPtrField<journal::Placement>& to) {
  for (const core::Placement& rank : ranks) {
    journal::Placement& m = *to.Add();
    m.set_worker(rank.worker);
    for (const std::string& uuid : rank.gpus) m.add_gpus(uuid);
  }
}

bool get_ranks(const google::protobuf::RepeatedPtrField<journal::Placement>& from,
               std::vector<core::Placement>& ranks) {
  for (const journal::Placement& m : from) {
    if (m.worker() >= core::kWorkersMax) return false;
    ranks.push_back({static_cast<core::WorkerId>(m.worker()), {m.gpus().begin(), m.gpus().end()}});
  }
  return true;
}

void put_labels(const Labels& labels, google::protobuf::RepeatedPtrField<journal::Label>& to) {
  for (const auto& [name, value] : labels) {
    journal::Label& m = *to.Add();
    m.set_name(name);
    m.set_value(value);
  }
}

bool get_labels(const google::protobuf::RepeatedPtrField<journal::Label>& from, Labels& labels) {
  for (const journal::Label& m : from) labels.emplace_back(m.name(), m.value());
  return core::are_sound(labels);
}

void put_quantities(const ResourceQuantities& quantities,
                    google::protobuf::RepeatedPtrField<journal::ResourceQuantity>& to) {
  for (const auto& [name, milli] : quantities) {
    journal::ResourceQuantity& m = *to.Add();
    m.set_name(name);
    m.set_milli(milli);
  }
}

bool get_quantities(const google::protobuf::RepeatedPtrField<journal::ResourceQuantity>& from,
                    ResourceQuantities& quantities) {
  for (const journal::ResourceQuantity& m : from) quantities.emplace_back(m.name(), m.milli());
  return are_sound(quantities);
}

Error newer_schema(uint32_t schema, const char* what) {
  return environment_error(
      fmt::format("the {} was written by a newer version of flow (schema {}, this program knows "
                  "{}): use that version, or a newer one",
                  what, schema, kSchema));
}

namespace {

bool has_failed(const google::protobuf::RepeatedPtrField<journal::Gpu>& gpus) {
  return std::any_of(gpus.begin(), gpus.end(),
                     [](const journal::Gpu& gpu) { return !gpu.fault().empty(); });
}

bool has_joined(const google::protobuf::RepeatedPtrField<journal::Gpu>& gpus) {
  return std::any_of(gpus.begin(), gpus.end(), [](const journal::Gpu& gpu) {
    return gpu.nvlink() > 0 || !gpu.fabric().empty();
  });
}

/// The first that knew what the record tells.
uint32_t schema_of(const journal::Record& m, bool is_of_run) {
  bool is_lasting = m.failure().cause() == static_cast<uint32_t>(core::Cause::staging) &&
                    m.failure().code() == core::kInputIsGone;
  if (is_lasting) return kMissingInputsSchema;
  if (m.type() == journal::GPUS_FOUND && m.number() > 0) return kLateGpusSchema;
  bool is_of_death =
      m.flag() && (m.type() == journal::WORKER_LOST || m.type() == journal::WORKER_JOINED);
  bool is_of_rank = m.type() == journal::ATTEMPT_FAILED && (m.number() > 0 || m.flag());
  bool is_of_aside = m.type() == journal::TIMER_FIRED && !is_of_run;
  if (is_of_death || is_of_rank || is_of_aside || m.type() == journal::WORKERS_ANNOUNCED)
    return kDeathsSchema;
  if (m.missing_size() > 0) return kMissingResultsSchema;
  bool is_of_fault = m.type() == journal::GPU_FAILED || has_failed(m.machine_gpus()) ||
                     m.failure().cause() == static_cast<uint32_t>(core::Cause::gpu_fault);
  if (is_of_fault) return kGpuFaultSchema;
  bool works_and_leads = m.type() == journal::ENGINE_STARTED && m.flag() && m.number() > 0;
  if (works_and_leads) return kLeadsSchema;
  if (m.custom_resources_size() > 0) return kCustomResourcesSchema;
  if (has_joined(m.machine_gpus())) return kNvlinkSchema;
  if (m.type() == journal::RESIZE_REQUESTED) return kResizeSchema;
  if (m.type() == journal::WORKER_DRAINING) return kDrainSchema;
  bool is_of_worker =
      m.type() == journal::WORKER_JOINED || m.type() == journal::WORKER_DISCONNECTED ||
      m.type() == journal::WORKER_LOST || (m.type() == journal::ASSIGNED && m.number() > 0);
  bool is_of_gang = m.others_size() > 0 || m.number3() > 0;
  if (is_of_worker || is_of_gang) return kWorkersSchema;
  return m.gpus_size() > 0 || m.machine_gpus_size() > 0 ? kGpusSchema : 1;
}

}  // namespace

std::string encode_records(const std::vector<core::Record>& records) {
  google::protobuf::Arena arena;
  auto* batch = google::protobuf::Arena::CreateMessage<journal::Batch>(&arena);
  uint32_t schema = 1;
  batch->mutable_records()->Reserve(static_cast<int>(records.size()));
  std::map<std::string, uint32_t> runs;
  for (const core::Record& record : records) {
    journal::Record& m = *batch->add_records();
    m.set_sequence(record.sequence);
    m.set_at(record.at);
    const std::string& run = std::visit(Writer{m}, record.event);
    schema = std::max(schema, schema_of(m, !run.empty()));
    if (run.empty()) continue;
    auto [place, added] = runs.try_emplace(run, static_cast<uint32_t>(runs.size() + 1));
    if (added) batch->add_runs(run);
    m.set_run(place->second);
  }
  batch->set_schema(schema);
  std::string bytes = batch->SerializeAsString();
  seal(bytes);
  return bytes;
}

namespace {

/// False where the field would not keep the number.
template <typename Field>
bool keep(int64_t number, Field& field) {
  field = static_cast<Field>(number);
  return field == number;
}

/// One record back; false where a field is not what its type needs.
class RecordReader {
 public:
  RecordReader(const journal::Batch& batch, const FindPlan& plan, const FindFragment& fragment)
      : batch_(batch), plan_(plan), fragment_(fragment) {}

  bool read(const journal::Record& m, core::Record& record) {
    record.sequence = m.sequence();
    record.at = m.at();
    std::string run;
    bool is_of_run = m.type() != journal::ENGINE_STARTED && m.type() != journal::GPUS_FOUND &&
                     m.type() != journal::WORKER_JOINED &&
                     m.type() != journal::WORKER_DISCONNECTED && m.type() != journal::WORKER_LOST &&
                     m.type() != journal::WORKER_DRAINING && m.type() != journal::GPU_FAILED &&
                     m.type() != journal::WORKERS_ANNOUNCED &&
                     (m.type() != journal::TIMER_FIRED || m.run() != 0);
    if (is_of_run) {
      if (m.run() == 0 || m.run() > static_cast<uint32_t>(batch_.runs_size())) return false;
      run = batch_.runs(static_cast<int>(m.run()) - 1);
      if (run.empty()) return false;
    }
    core::AttemptId id{run, m.unit(), m.attempt(), m.epoch()};
    Digest digest;
    bool has_digest = Digest::from_bytes(m.digest(), digest);
    switch (m.type()) {
      case journal::ENGINE_STARTED: {
        core::EngineStarted e{m.epoch(), 0, m.number2(), {}, m.flag()};
        bool ok = keep(m.number(), e.cpus_milli) &&
                  get_quantities(m.custom_resources(), e.custom_resources);
        record.event = std::move(e);
        return ok;
      }
      case journal::RUN_SUBMITTED: {
        core::RunSubmitted e;
        e.run = run;
        e.name = m.text();
        e.plan_digest = digest;
        e.plan = has_digest ? plan_(digest) : nullptr;
        if (!keep(m.number(), e.jobs)) return false;
        e.fail_fast = m.flag();
        e.fresh = m.flag2();
        if (!e.plan) missing = "the plan " + digest.hex();
        record.event = std::move(e);
        return missing.empty();
      }
      case journal::INPUTS_RESOLVED: {
        core::InputsResolved e;
        e.run = run;
        e.unit = m.unit();
        e.key = digest;
        e.hit = m.flag();
        if (e.hit && !Digest::from_bytes(m.digest2(), e.result)) return false;
        if (!m.digest3().empty() && !find_fragment(m.digest3(), e.fragment_digest, e.fragment))
          return false;
        record.event = std::move(e);
        return has_digest;
      }
      case journal::INPUTS_FAILED: {
        core::InputsFailed e{run, m.unit(), {}};
        bool ok = get_failure(m.failure(), e.failure);
        record.event = std::move(e);
        return ok;
      }
      case journal::MAP_EXPANDED: {
        core::MapExpanded e{run, m.unit(), 0};
        bool ok = keep(m.number(), e.count);
        record.event = e;
        return ok;
      }
      case journal::WHEN_RESOLVED:
        record.event = core::WhenResolved{run, m.unit(), m.flag()};
        return true;
      case journal::VALUE_GATHERED:
        record.event = core::ValueGathered{run, m.unit(), digest};
        return has_digest;
      case journal::ASSIGNED: {
        core::Assigned e{id, {m.gpus().begin(), m.gpus().end()}, 0};
        bool ok = keep(m.number(), e.worker) && keep(m.number3(), e.share.cpus_milli) &&
                  get_ranks(m.others(), e.others);
        e.share.memory_bytes = m.number2();
        record.event = std::move(e);
        return ok;
      }
      case journal::ATTEMPT_REQUEUED:
        record.event = core::AttemptRequeued{id};
        return true;
      case journal::ATTEMPT_SUCCEEDED: {
        core::AttemptSucceeded e;
        e.id = id;
        e.result = digest;
        e.duration_us = m.number();
        e.waited = m.flag();
        if (!m.digest2().empty() && !find_fragment(m.digest2(), e.fragment_digest, e.fragment))
          return false;
        record.event = std::move(e);
        return has_digest;
      }
      case journal::ATTEMPT_FAILED: {
        core::AttemptFailed e{id, {}, 0, m.flag()};
        bool ok = get_failure(m.failure(), e.failure) && keep(m.number(), e.rank);
        record.event = std::move(e);
        return ok;
      }
      case journal::ATTEMPT_WAITING:
        record.event = core::AttemptWaiting{id, m.text(), m.text2(), m.number()};
        return true;
      case journal::ATTEMPT_STOPPED:
        record.event = core::AttemptStopped{id};
        return true;
      case journal::SERVICE_READY:
        record.event = core::ServiceReady{id, m.text()};
        return true;
      case journal::STEP_SAVED:
        record.event = core::StepSaved{id, m.text(), digest};
        return has_digest;
      case journal::CHECKPOINT_SAVED:
        record.event = core::CheckpointSaved{id, digest};
        return has_digest;
      case journal::SIGNAL_RECEIVED:
        record.event = core::SignalReceived{run, m.text(), digest};
        return has_digest;
      case journal::TIMER_FIRED: {
        core::TimerFired e{run, m.unit(), 0};
        bool ok = keep(m.number(), e.serial);
        record.event = e;
        return ok;
      }
      case journal::CANCEL_REQUESTED:
        record.event = core::CancelRequested{run};
        return true;
      case journal::STOP_REQUESTED:
        record.event = core::StopRequested{run};
        return true;
      case journal::SERVE_ENDED:
        record.event = core::ServeEnded{run};
        return true;
      case journal::RETRY_REQUESTED:
        record.event =
            core::RetryRequested{run, m.flag(), m.unit(), {m.missing().begin(), m.missing().end()}};
        return true;
      case journal::RUN_DELETED:
        record.event = core::RunDeleted{run};
        return true;
      case journal::GPUS_FOUND: {
        core::GpusFound e;
        bool ok = keep(m.number(), e.worker) && get_gpus(m.machine_gpus(), e.gpus);
        record.event = std::move(e);
        return ok;
      }
      case journal::WORKER_JOINED: {
        core::WorkerJoined e{{m.text(), 0, m.number2(), {}}};
        bool ok = keep(m.number(), e.worker.cpus_milli) &&
                  get_gpus(m.machine_gpus(), e.worker.gpus) &&
                  get_labels(m.labels(), e.worker.labels) &&
                  get_quantities(m.custom_resources(), e.worker.custom_resources);
        for (const journal::Offer& offer : m.offers())
          e.attempts.push_back({offer.run(), offer.unit(), offer.attempt(), offer.epoch()});
        e.is_restarted = m.flag();
        record.event = std::move(e);
        return ok;
      }
      case journal::WORKER_DISCONNECTED: {
        core::WorkerDisconnected e{0, m.text()};
        bool ok = keep(m.number(), e.worker);
        record.event = std::move(e);
        return ok;
      }
      case journal::WORKER_LOST: {
        core::WorkerLost e{0, m.text(), m.flag()};
        bool ok = keep(m.number(), e.worker);
        record.event = std::move(e);
        return ok;
      }
      case journal::WORKER_DRAINING: {
        core::WorkerDraining e{0, m.text()};
        bool ok = keep(m.number(), e.worker);
        record.event = std::move(e);
        return ok;
      }
      case journal::GPU_FAILED: {
        core::GpuFailed e{0, m.text2(), m.text(), m.flag()};
        bool ok = keep(m.number(), e.worker);
        record.event = std::move(e);
        return ok;
      }
      case journal::WORKERS_ANNOUNCED: {
        core::WorkersAnnounced e;
        bool ok = keep(m.number(), e.count);
        record.event = e;
        return ok;
      }
      case journal::RESIZE_REQUESTED: {
        core::ResizeRequested e{id};
        bool ok = keep(m.number(), e.ranks);
        record.event = std::move(e);
        return ok;
      }
      default:
        return false;
    }
  }

  std::string missing;  // content that the journal names and the store lacks

 private:
  bool find_fragment(const std::string& bytes, Digest& digest,
                     std::shared_ptr<const PlanFragment>& out) {
    if (!Digest::from_bytes(bytes, digest)) return false;
    out = fragment_(digest);
    if (!out) missing = "the list of calls " + digest.hex();
    return out != nullptr;
  }

  const journal::Batch& batch_;
  const FindPlan& plan_;
  const FindFragment& fragment_;
};

}  // namespace

Result<std::vector<core::Record>> decode_records(std::string_view bytes, const FindPlan& plan,
                                                 const FindFragment& fragment) {
  std::string_view content;
  if (!unseal(bytes, content))
    return environment_error("a batch of the journal has a wrong checksum");
  google::protobuf::Arena arena;
  auto* batch = google::protobuf::Arena::CreateMessage<journal::Batch>(&arena);
  if (!batch->ParseFromArray(content.data(), static_cast<int>(content.size())))
    return environment_error("a batch of the journal can't be parsed");
  if (batch->schema() > kSchema) return newer_schema(batch->schema(), "journal");
  if (batch->schema() == 0) return environment_error("a batch of the journal has no schema");
  std::vector<core::Record> records(static_cast<size_t>(batch->records_size()));
  RecordReader reader(*batch, plan, fragment);
  for (size_t i = 0; i < records.size(); i++) {
    const journal::Record& m = batch->records(static_cast<int>(i));
    if (reader.read(m, records[i])) continue;
    if (!reader.missing.empty())
      return environment_error(
          fmt::format("the journal's record {} names {}, which the state does not hold",
                      m.sequence(), reader.missing));
    return environment_error(fmt::format("the journal's record {} (type {}) is damaged",
                                         m.sequence(), static_cast<int>(m.type())));
  }
  return records;
}

}  // namespace flow
