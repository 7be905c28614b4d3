// One flat message to one event: `type` decides what each field means.
#include "engine/store/flat_records.hpp"

#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include "engine/store/flat_records.pb.h"
#include "engine/store/record_parts.hpp"

namespace flow {

namespace {

/// False if the field is too small for the number.
template <typename Field>
bool keep(int64_t number, Field& field) {
  field = static_cast<Field>(number);
  return field == number;
}

/// Reads one record; returns false if a field is not what its type needs.
class FlatReader {
 public:
  FlatReader(const journal::FlatBatch& batch, const FindPlan& plan, const FindFragment& fragment)
      : batch_(batch), plan_(plan), fragment_(fragment) {}

  bool read(const journal::FlatRecord& m, core::Record& record) {
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
        core::EngineStarted e{m.epoch(), 0, m.number2(), {}, m.flag(), false};
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

  std::string missing;  // a blob that the journal names and the store lacks

 private:
  bool find_fragment(const std::string& bytes, Digest& digest,
                     std::shared_ptr<const PlanFragment>& out) {
    if (!Digest::from_bytes(bytes, digest)) return false;
    out = fragment_(digest);
    if (!out) missing = "the list of calls " + digest.hex();
    return out != nullptr;
  }

  const journal::FlatBatch& batch_;
  const FindPlan& plan_;
  const FindFragment& fragment_;
};

}  // namespace

Result<std::vector<core::Record>> decode_flat_records(std::string_view content,
                                                      const FindPlan& plan,
                                                      const FindFragment& fragment) {
  google::protobuf::Arena arena;
  auto* batch = google::protobuf::Arena::CreateMessage<journal::FlatBatch>(&arena);
  if (!batch->ParseFromArray(content.data(), static_cast<int>(content.size())))
    return environment_error("a batch of the journal can't be parsed");
  if (batch->records_size() == 0)
    return environment_error("a batch of the journal holds no record of its schema");
  std::vector<core::Record> records(static_cast<size_t>(batch->records_size()));
  FlatReader reader(*batch, plan, fragment);
  for (size_t i = 0; i < records.size(); i++) {
    const journal::FlatRecord& m = batch->records(static_cast<int>(i));
    bool is_read = reader.read(m, records[i]);
    if (!reader.missing.empty())
      return environment_error(
          fmt::format("the journal's record {} names {}, which the state does not hold",
                      m.sequence(), reader.missing));
    std::string problem = is_read ? event_problem(records[i].event) : "";
    if (is_read && problem.empty()) continue;
    return environment_error(fmt::format("the journal's record {} (type {}) is damaged{}{}",
                                         m.sequence(), static_cast<int>(m.type()),
                                         problem.empty() ? "" : ": ", problem));
  }
  return records;
}

}  // namespace flow
