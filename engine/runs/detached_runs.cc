#include "engine/runs/detached_runs.hpp"

#include <utility>

#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

void read_number(const Value& row, const char* name, int64_t& to) {
  const Value* found = row.find(std::string_view(name));
  if (found != nullptr && found->kind() == Value::Kind::integer) to = found->as_integer();
}

void read_flag(const Value& row, const char* name, bool& to) {
  const Value* found = row.find(std::string_view(name));
  if (found != nullptr && found->kind() == Value::Kind::boolean) to = found->as_boolean();
}

}  // namespace

std::string encode_detached_run(const DetachedRun& run) {
  return to_json(Value::map({{Value("grace_ms"), Value(run.grace_ms)},
                             {Value("serve_for_ms"), Value(run.serve_for_ms)},
                             {Value("serve_until_ms"), Value(run.serve_until_ms)},
                             {Value("front_lease_ms"), Value(run.front_lease_ms)},
                             {Value("of_head"), Value(run.is_of_head)},
                             {Value("problem"), Value(run.problem)},
                             {Value("detached"), Value(run.is_detached)}}));
}

DetachedRun decode_detached_run(std::string_view row) {
  DetachedRun run;
  auto value = from_json(row);
  if (!value.ok() || value->kind() != Value::Kind::table) return run;
  read_number(*value, "grace_ms", run.grace_ms);
  read_number(*value, "serve_for_ms", run.serve_for_ms);
  read_number(*value, "serve_until_ms", run.serve_until_ms);
  read_number(*value, "front_lease_ms", run.front_lease_ms);
  read_flag(*value, "of_head", run.is_of_head);
  read_flag(*value, "detached", run.is_detached);
  const Value* problem = value->find(std::string_view("problem"));
  bool is_text = problem != nullptr && problem->kind() == Value::Kind::string;
  if (is_text) run.problem = problem->as_string();
  return run;
}

Result<std::optional<DetachedRun>> find_detached_run(const Store& store, const core::RunId& run) {
  auto row = store.get(Family::kv, detached_key(run));
  FLOW_TRY(row);
  if (!row->has_value()) return std::optional<DetachedRun>();
  return std::optional(decode_detached_run(**row));
}

std::string why_not_resumed(const Store& store, const core::RunId& run) {
  auto found = find_detached_run(store, run);
  return found.ok() && *found ? (*found)->problem : "";
}

bool should_continue(const core::Run& run) {
  return !core::is_final(run.status) && !run.stop_requested && !run.cancelling && !run.ending;
}

Result<std::vector<core::RunId>> left_runs(const core::State& state, const Store& store,
                                           bool for_head) {
  std::vector<core::RunId> left;
  for (const auto& [id, run] : state.runs) {
    if (!should_continue(run)) continue;
    auto found = find_detached_run(store, id);
    FLOW_TRY(found);
    bool is_left = *found && (*found)->is_detached && (for_head || !(*found)->is_of_head);
    if (is_left) left.push_back(id);
  }
  return left;
}

}  // namespace flow
