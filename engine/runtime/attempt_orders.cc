#include "engine/runtime/attempt_orders.hpp"

#include <algorithm>
#include <map>

#include "engine/base/ids.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/plan/service_keys.hpp"
#include "engine/runs/front_folder.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/value/cbor.hpp"

namespace flow {

namespace {

constexpr size_t kKeyLetters = 32;  // of 36 letters: more than 160 bits

bool has_mig(const std::vector<Gpu>& gpus, const std::vector<std::string>& assigned_gpus) {
  return std::any_of(assigned_gpus.begin(), assigned_gpus.end(), [&](const std::string& uuid) {
    auto at = core::find_gpu(gpus, uuid);
    return at && gpus[*at].is_mig;
  });
}

}  // namespace

bool AttemptOrders::fill(const core::AttemptId& id, AttemptOrder& order) {
  auto found = state_.runs.find(id.run);
  RunContext* context = active_runs_.find(id.run);
  if (found == state_.runs.end() || context == nullptr) return false;
  const core::Run& run = found->second;
  const core::Unit& unit = run.units[id.unit];
  bool is_current = unit.attempts == id.attempt && unit.epoch == id.epoch;
  if (unit.status != core::UnitStatus::running || !is_current) return false;
  const TaskDef& def = *core::def_of(run, id.unit);
  order.id = id;
  order.task = core::unit_name(run, id.unit);
  order.tag = core::tag_of(run, id.unit);
  order.task_name = def.name;
  order.kind = def.kind;
  order.key = unit.key;
  order.bundle = context->record.bundle_digest;
  order.bundle_bytes = context->bundle;
  order.ordinal = def.ordinal;
  order.resources = core::resources_of(run, id.unit);
  core::SchedulingClass held = core::held_by(state_, run, id.unit);
  order.resources.cpus_milli = held.cpus_milli;
  order.resources.memory_bytes = held.memory_bytes;
  // The timeout of a service is that of its requests: it serves until its run ends.
  int64_t& timeout_ms = def.kind == TaskKind::service ? order.request_timeout_ms : order.timeout_ms;
  timeout_ms = core::timeout_ms_of(run, id.unit);
  order.grace_ms = context->grace_ms;
  order.front_lease_ms = context->front_lease_ms;
  order.stage_copy = def.stage_copy;
  if (def.kind == TaskKind::shell || !def.shell.command.empty())
    order.shell = std::shared_ptr<const ShellSpec>(run.plan, &def.shell);
  if (!def.file.empty()) order.defined_at = def.file + ":" + std::to_string(def.line);
  if (def.kind == TaskKind::service) {
    order.service = def.service;
    order.front = front_folder(state_dir_, run, id.unit);
  }
  order.named_args = run.node(unit.node).named_args;
  order.seed = InputResolver::seed(run, id.unit, 0);
  add_environment(def, *context, order);
  bool has_own_trace = std::any_of(def.env.begin(), def.env.end(), [](const EnvEntry& entry) {
    return entry.name == "TRACEPARENT";
  });
  if (!has_own_trace) order.traceparent = telemetry_.traceparent(state_, id);
  auto args = resolver_.arguments(run, id.unit);
  if (!args.ok()) {
    core::Failure failure;
    failure.cause = core::Cause::staging;
    failure.message = args.error().message;
    inbox_.post({PostedEvent{core::AttemptFailed{id, std::move(failure)}}});
    return false;
  }
  order.args = std::move(*args);
  attach_blobs(order);
  if (unit.attempts > 1 || (unit.detail && !unit.detail->waits.empty()))
    attach_progress(run, unit, order);
  for (const auto& [name, digest] : run.signals) {
    auto bytes = blobs_.read(digest);
    if (bytes.ok()) order.signals.emplace_back(name, std::move(*bytes));
  }
  return true;
}

// Values that come from the submitter's environment are hidden in logs.
void AttemptOrders::add_environment(const TaskDef& def, const RunContext& context,
                                    AttemptOrder& order) const {
  order.environment = context.environment;
  const std::string& keys = def.service.keys.variable;
  for (const auto& [name, value] : *context.environment) {
    if (keys.empty()) break;
    if (name != keys) continue;
    order.service_keys = value;
    order.hide = secrets_of_key_list(value);
  }
  for (const EnvEntry& entry : def.env) {
    if (!entry.from_submitter) {
      order.env.emplace_back(entry.name, entry.value);
      continue;
    }
    for (const auto& [name, value] : *context.environment) {
      if (name != entry.value) continue;
      order.env.emplace_back(entry.name, value);
      order.hide.push_back(value);
    }
  }
}

// Made in place: moving an order costs about as much as making it.
void AttemptOrders::add(const core::AttemptId& id, std::vector<AttemptOrder>& orders) {
  AttemptOrder& order = orders.emplace_back();
  if (!fill(id, order)) return orders.pop_back();
  const core::Run& run = state_.runs.at(id.run);
  const core::Unit& unit = run.units[id.unit];
  if (core::resources_of(run, id.unit).is_gang()) {
    AttemptOrder of_gang = std::move(order);
    orders.pop_back();
    return split(std::move(of_gang), run, orders);
  }
  order.worker = worker_name(unit.worker);
  if (!order.worker.empty()) send_keys(order);
  if (order.resources.gpus_milli > 0) order.gpus = core::gpus_of(unit);
}

// Another machine may lack the file. If it cannot be read here, the replica says why.
void AttemptOrders::send_keys(AttemptOrder& order) {
  if (order.service.keys.file.empty()) return;
  auto keys = key_list_of_file(order.service.keys.file);
  if (!keys.ok()) return;
  order.service_keys = std::move(*keys);
  for (std::string& secret : secrets_of_key_list(order.service_keys))
    order.hide.push_back(std::move(secret));
}

std::string AttemptOrders::worker_name(core::WorkerId worker) const {
  return worker < state_.workers.size() ? state_.workers[worker].info.name : "";
}

void AttemptOrders::split(AttemptOrder order, const core::Run& run,
                          std::vector<AttemptOrder>& orders) const {
  const core::Unit& unit = run.units[order.id.unit];
  order.gang_key = random_name(kKeyLetters);
  order.encrypts = encrypts_;
  size_t first = orders.size();
  std::map<core::WorkerId, uint32_t> ranks_on_worker;
  std::map<core::WorkerId, std::vector<std::string>> gpus_on_worker;
  uint32_t ranks = 0;
  core::for_each_rank(unit, [&](core::WorkerId worker, const std::vector<std::string>& gpus) {
    AttemptOrder& rank = orders.emplace_back(order);
    rank.rank = ranks++;
    rank.local_rank = ranks_on_worker[worker]++;
    rank.worker = worker_name(worker);
    rank.seed = InputResolver::seed(run, order.id.unit, rank.rank);
    if (order.resources.gpus_milli == 0) return;
    rank.gpus = gpus;
    std::vector<std::string>& local_gpus = gpus_on_worker[worker];
    local_gpus.insert(local_gpus.end(), gpus.begin(), gpus.end());
  });
  std::string remote_address;  // an address on a worker's machine that this one can reach
  for (const auto& [worker, count] : ranks_on_worker) {
    if (remote_address.empty()) remote_address = workers_.address_of(worker_name(worker));
  }
  uint32_t at = 0;
  core::for_each_rank(unit, [&](core::WorkerId worker, const auto&) {
    AttemptOrder& rank = orders[first + at++];
    rank.ranks = ranks;
    rank.local_ranks = ranks_on_worker[worker];
    rank.is_spread = ranks_on_worker.size() > 1;
    // As torchrun does: LOCAL_RANK is the number of the rank's device.
    bool is_shell = order.kind == TaskKind::shell;
    if (is_shell && !has_mig(state_.workers[worker].info.gpus, rank.gpus)) {
      rank.visible = gpus_on_worker[worker];
    } else if (is_shell && !rank.gpus.empty()) {
      // CUDA shows a process only the first MIG instance: each rank sees its own, as number 0.
      rank.local_rank = 0;
      rank.local_ranks = 1;
    }
    if (rank.is_spread && rank.worker.empty()) rank.remote_address = remote_address;
  });
}

// The batch of this very turn may hold what earlier attempts left, so the order of a later attempt
// is made after the commit. So is the order of a native task, which starts at once.
bool AttemptOrders::can_prefetch(const core::AttemptId& id) const {
  auto run = state_.runs.find(id.run);
  if (run == state_.runs.end() || id.unit >= run->second.units.size()) return false;
  const core::Unit& unit = run->second.units[id.unit];
  return unit.attempts == 1 && !(unit.detail && !unit.detail->waits.empty()) &&
         core::def_of(run->second, id.unit)->kind != TaskKind::native;
}

void AttemptOrders::take_early_starts(std::vector<core::Command>& effects, size_t from) {
  if (!workers_.has_own()) return;
  auto is_early = [this](const core::Command& effect) {
    const auto* start = std::get_if<core::StartAttempt>(&effect);
    if (start == nullptr || !can_prefetch(start->id)) return false;
    early_starts_.push_back(start->id);
    TaskKind kind = core::def_of(state_.runs.at(start->id.run), start->id.unit)->kind;
    has_speculative_start_ |= kind == TaskKind::lua || kind == TaskKind::dynamic;
    return true;
  };
  auto first = effects.begin() + static_cast<std::ptrdiff_t>(from);
  effects.erase(std::remove_if(first, effects.end(), is_early), effects.end());
}

void AttemptOrders::prefetch(uint64_t commit) {
  std::vector<AttemptOrder> orders;
  orders.reserve(early_starts_.size());
  for (const core::AttemptId& id : early_starts_) add(id, orders);
  early_starts_.clear();
  has_speculative_start_ = false;
  if (!orders.empty()) workers_.stage(std::move(orders), commit);
}

// Small blobs that the arguments name travel with the order. The executor finds the files of large
// ones.
void AttemptOrders::attach_blobs(AttemptOrder& order) const {
  if (!holds_tag(order.args)) return;
  auto args = decode_value(order.args);
  FLOW_CHECK(args.ok());
  std::vector<Digest> needed;
  collect_blobs(*args, needed);
  for (const Digest& digest : needed) {
    const std::string* bytes = blobs_.staged(digest);
    if (bytes != nullptr && bytes->size() <= kInlineBlobMax) {
      order.blobs.emplace_back(digest, *bytes);
      continue;
    }
    auto row = store_.get(Family::blobs, digest.view());
    if (row.ok() && row->has_value()) order.blobs.emplace_back(digest, std::move(**row));
  }
}

// Earlier attempts of the same task instance and key left steps, the newest checkpoint and waits.
void AttemptOrders::attach_progress(const core::Run& run, const core::Unit& unit,
                                    AttemptOrder& order) const {
  std::string prefix = step_prefix(run.id, order.task, unit.key);
  Status scanned =
      store_.scan(Family::kv, prefix, prefix, [&](std::string_view key, std::string_view value) {
        order.steps.emplace_back(std::string(key.substr(prefix.size())), std::string(value));
        return true;
      });
  if (!scanned.ok()) stop_.set(scanned.error());
  auto checkpoint = store_.get(Family::kv, checkpoint_key(run.id, order.task, unit.key));
  if (checkpoint.ok() && checkpoint->has_value()) {
    order.has_checkpoint = true;
    order.checkpoint = std::move(**checkpoint);
  }
  for (auto& [name, bytes] : order.steps) attach_blobs_of(bytes, order);
  if (order.has_checkpoint) attach_blobs_of(order.checkpoint, order);
  if (!unit.detail) return;
  for (const auto& [name, wait] : unit.detail->waits) {
    order.waits.push_back({name, wait.first, wait.second});
  }
}

void AttemptOrders::attach_blobs_of(const std::string& encoded, AttemptOrder& order) const {
  auto value = decode_value(encoded);
  if (!value.ok()) return;
  std::vector<Digest> needed;
  collect_blobs(*value, needed);
  for (const Digest& digest : needed) {
    auto row = store_.get(Family::blobs, digest.view());
    if (row.ok() && row->has_value()) order.blobs.emplace_back(digest, std::move(**row));
  }
}

}  // namespace flow
