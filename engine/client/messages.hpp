// What a client and the writer of a state say to each other, as values in frames. Both sides are
// the same user's, or hold one cluster's secret; what comes in is parsed strictly all the same.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/client/connection.hpp"
#include "engine/submission/prepare.hpp"
#include "flow/flow.hpp"

namespace flow {

constexpr uint32_t kLinkVersion = 1;

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

Value strings_to_value(const std::vector<std::string>& strings);
std::vector<std::string> strings_from_value(const Value* value);

// Fields of a table from outside, with what stands in for a missing or mistyped one.
std::string text_field(const Value& table, std::string_view name);
int64_t integer_field(const Value& table, std::string_view name, int64_t otherwise = 0);
double number_field(const Value& table, std::string_view name);
bool flag_field(const Value& table, std::string_view name);

}  // namespace flow
