// What an attempt is told: its task, its arguments, what earlier attempts left.
#include <algorithm>

#include "engine/base/log.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/value/cbor.hpp"

namespace flow {

std::optional<AttemptOrder> EngineLoop::make_order(const core::AttemptId& id) {
  auto found = state_.runs.find(id.run);
  RunContext* context = context_of(id.run);
  if (found == state_.runs.end() || context == nullptr) return std::nullopt;
  const core::Run& run = found->second;
  const core::Unit& unit = run.units[id.unit];
  if (unit.status != core::UnitStatus::running || core::current_attempt(run, id.unit) != id) {
    return std::nullopt;
  }
  const TaskDef& def = *InputResolver::def_of(run, id.unit);
  AttemptOrder order;
  order.id = id;
  order.task = InputResolver::unit_name(run, id.unit);
  order.task_name = def.name;
  order.kind = def.kind;
  order.key = unit.key;
  order.bundle = context->record.bundle_digest;
  order.bundle_bytes = context->bundle;
  order.ordinal = def.ordinal;
  order.resources = def.resources;
  core::SchedulingClass held = core::held_by(state_, run, id.unit);
  order.resources.cpus_milli = held.cpus_milli;
  order.resources.memory_bytes = held.memory_bytes;
  order.timeout_ms = def.timeout_ms;
  order.grace_ms = context->grace_ms;
  order.stage_copy = def.stage_copy;
  if (def.kind == TaskKind::shell)
    order.shell = std::shared_ptr<const ShellSpec>(run.plan, &def.shell);
  if (!def.file.empty()) order.defined_at = def.file + ":" + std::to_string(def.line);
  order.service = def.service;
  order.named_args = run.node(unit.node).named_args;
  order.environment = context->environment;
  order.seed = InputResolver::seed(run, id.unit, 0);
  for (const EnvEntry& entry : def.env) {
    if (!entry.from_submitter) {
      order.env.emplace_back(entry.name, entry.value);
      continue;
    }
    for (const auto& [name, value] : *context->environment) {
      if (name != entry.value) continue;
      order.env.emplace_back(entry.name, value);
      order.hide.push_back(value);
    }
  }
  log::hide(order.hide);
  auto args = resolver_.arguments(run, id.unit);
  if (!args.ok()) {
    post_failure(id, core::Cause::staging, args.error().message);
    return std::nullopt;
  }
  order.args = std::move(*args);
  attach_blobs(order);
  if (unit.attempts > 1 || (unit.detail && !unit.detail->waits.empty()))
    attach_progress(run, unit, order);
  for (const auto& [name, digest] : run.signals) {
    auto bytes = read_blob(digest);
    if (bytes.ok()) order.signals.emplace_back(name, std::move(*bytes));
  }
  return order;
}

void EngineLoop::add_orders(const core::AttemptId& id, std::vector<AttemptOrder>& orders) {
  auto order = make_order(id);
  if (!order) return;
  const core::Run& run = state_.runs.at(id.run);
  const core::Unit& unit = run.units[id.unit];
  if (InputResolver::def_of(run, id.unit)->resources.is_gang())
    return split(std::move(*order), run, orders);
  order->worker = worker_name(unit.worker);
  if (order->resources.gpus_milli > 0) order->gpus = core::gpus_of(unit);
  orders.push_back(std::move(*order));
}

// The small blobs that the arguments need travel with the order; large ones are files the executor
// finds.
void EngineLoop::attach_blobs(AttemptOrder& order) {
  if (!holds_tag(order.args)) return;
  auto args = decode_value(order.args);
  FLOW_CHECK(args.ok());
  std::vector<Digest> needed;
  collect_blobs(*args, needed);
  for (const Digest& digest : needed) {
    const std::string* bytes = staged(digest);
    if (bytes != nullptr && bytes->size() <= kInlineBlobMax) {
      order.blobs.emplace_back(digest, *bytes);
      continue;
    }
    auto row = store_->get(Family::blobs, digest.view());
    if (row.ok() && row->has_value()) order.blobs.emplace_back(digest, std::move(**row));
  }
}

// What earlier attempts of this node and key left: steps, the newest checkpoint, waits.
void EngineLoop::attach_progress(const core::Run& run, const core::Unit& unit,
                                 AttemptOrder& order) {
  std::string prefix = step_prefix(run.id, order.task, unit.key);
  Status scanned =
      store_->scan(Family::kv, prefix, prefix, [&](std::string_view key, std::string_view value) {
        order.steps.emplace_back(std::string(key.substr(prefix.size())), std::string(value));
        return true;
      });
  if (!scanned.ok()) fail(scanned.error());
  auto checkpoint = store_->get(Family::kv, checkpoint_key(run.id, order.task, unit.key));
  if (checkpoint.ok() && checkpoint->has_value()) {
    order.has_checkpoint = true;
    order.checkpoint = std::move(**checkpoint);
  }
  for (auto& [name, bytes] : order.steps) attach_value(bytes, order);
  if (order.has_checkpoint) attach_value(order.checkpoint, order);
  if (!unit.detail) return;
  for (const auto& [name, wait] : unit.detail->waits) {
    order.waits.push_back({name, wait.first, wait.second});
  }
}

void EngineLoop::attach_value(const std::string& bytes, AttemptOrder& order) {
  auto value = decode_value(bytes);
  if (!value.ok()) return;
  std::vector<Digest> needed;
  collect_blobs(*value, needed);
  for (const Digest& digest : needed) {
    auto row = store_->get(Family::blobs, digest.view());
    if (row.ok() && row->has_value()) order.blobs.emplace_back(digest, std::move(**row));
  }
}

}  // namespace flow
