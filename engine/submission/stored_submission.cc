#include "engine/submission/stored_submission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/store/row_keys.hpp"
#include "engine/submission/prepare.hpp"

namespace flow {

namespace {

bool is_service(const TaskDef& def) { return def.kind == TaskKind::service; }

/// Whether that changes the plan.
bool skip_canaries(Plan& plan, bool skips) {
  bool is_changed = false;
  for (TaskDef& def : plan.defs) {
    CanarySpec& canary = def.service.canary;
    if (!canary.percents.empty()) is_changed |= std::exchange(canary.is_skipped, skips) != skips;
  }
  return is_changed;
}

}  // namespace

Result<Prepared> prepare_stored(const Store& store, const Blobs& blobs, const RunRecord& record,
                                const Submission& submission, Takeover takeover) {
  FLOW_TRY(check_name(submission.options.name));
  auto plan_bytes = blobs.get(record.plan_digest);
  FLOW_TRY(plan_bytes);
  auto bundle_bytes = blobs.get(record.bundle_digest);
  FLOW_TRY(bundle_bytes);
  auto inputs = store.get(Family::kv, inputs_key(record.id));
  FLOW_TRY(inputs);
  auto plan = decode_plan(*plan_bytes);
  FLOW_TRY(plan);
  if (std::ranges::none_of(plan->defs, is_service))
    return user_error(fmt::format("the run {} has no service that could be served", record.id));
  if (skip_canaries(*plan, takeover == Takeover::at_once)) *plan_bytes = encode_plan(*plan);

  Prepared prepared;
  RunRecord& again = prepared.context.record;
  again.name = submission.options.name;
  again.pipeline = record.pipeline;
  again.status = "pending";
  again.script = record.script;
  again.directory = record.directory;
  again.params = record.params;
  again.plan_digest = sha256(*plan_bytes);
  again.bundle_digest = record.bundle_digest;
  prepared.context.request = submission.options.request;
  prepared.context.bundle = std::make_shared<const std::string>(std::move(*bundle_bytes));
  prepared.context.environment = submission.environment;
  prepared.context.user = submission.user;
  prepared.context.by = submission.by;
  prepared.context.grace_ms = submission.options.grace_ms;
  prepared.context.publishes_logs = submission.options.logs;
  prepared.context.serve_for_ms = submission.options.serve_for_ms;
  prepared.context.front_lease_ms = submission.options.front_lease_ms;
  prepared.context.is_detached = submission.options.detached;
  prepared.plan = std::make_shared<const Plan>(std::move(*plan));
  prepared.plan_bytes = std::move(*plan_bytes);
  prepared.inputs = std::move(*inputs).value_or("");
  return prepared;
}

Status check_only_services_run(const PlanInfo& preview, const RunRecord& record) {
  constexpr size_t kNamedMax = 10;
  std::string missing;
  size_t count = 0;
  for (const PlanNode& node : preview.nodes) {
    bool is_ready = node.verdict == "cached" || node.verdict == "skipped";
    if (node.kind == "service" || is_ready || ++count > kNamedMax) continue;
    missing += fmt::format("\n  `{}`: {}", node.name, node.reason);
  }
  if (count == 0) return {};
  if (count > kNamedMax) missing += fmt::format("\n  and {} more", count - kNamedMax);
  return user_error(fmt::format(
      "only the services of the run {} may run, and the cache does not have {} of its tasks:{}\n"
      "`flow run {}` computes what is missing",
      record.id, count, missing, record.script));
}

}  // namespace flow
