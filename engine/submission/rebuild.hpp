// Builds the graph of a prepared run again, in order to call a function of its script.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/submission/submission.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

/// Builds the graph again from its own code, parameters and listings.
Result<BuildOrder> rebuild_order(std::shared_ptr<const Plan> plan, const RunContext& context);
/// The build calls the tag function of this map of the plan for each of `items`, a list.
void add_tag_calls(BuildOrder& order, uint32_t node, const Value& items);
/// The answer to these calls.
Result<std::vector<std::string>> tags_of(const Result<BuildReply>& reply);
/// Adds the time that this number of calls may take.
void add_time(BuildOrder& order, size_t calls);

}  // namespace flow
