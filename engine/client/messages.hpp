// What a client and the writer of a state say to each other, as values in frames. Both sides are
// the same user's, or hold one cluster's secret; what comes in is parsed strictly all the same.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/client/connection.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/value/value_fields.hpp"
#include "flow/flow.hpp"

namespace flow {

constexpr uint32_t kClientProtocolVersion = 1;

Value event_to_value(const Event& event);
Event event_from_value(const Value& value);
Value error_to_value(const Error& error);
Error error_from_value(const Value& value);
Value submission_to_value(const Submission& submission);
Result<Submission> submission_from_value(const Value& value);
Value counts_to_value(const Counts& counts);
Counts counts_from_value(const Value& value);
/// Without its tasks, which go in frames of their own: a run may have a million.
Value info_to_value(const RunInfo& info);
RunInfo info_from_value(const Value& value);
Value tasks_to_value(const std::vector<TaskInfo>& tasks, size_t from, size_t count);
void add_tasks(const Value& value, std::vector<TaskInfo>& tasks);
Value plan_to_value(const PlanInfo& plan);
PlanInfo plan_from_value(const Value& value);
Value nodes_to_value(const std::vector<NodeInfo>& nodes);
std::vector<NodeInfo> nodes_from_value(const Value& value);

}  // namespace flow
