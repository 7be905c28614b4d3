#include "engine/submission/rebuild.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/base/errors.hpp"
#include "engine/blobs/input_listing.hpp"
#include "engine/value/cbor.hpp"

namespace flow {

namespace {

constexpr int64_t kMsPerCall = 1000;  // as the executor's limit

/// The paths that the pattern matched when the run's graph was built.
Result<std::vector<std::string>> listed_before(const Plan& plan, const InputPattern& wanted) {
  for (const InputListing& listing : plan.listings)
    if (listing.folder == wanted.folder && listing.pattern == wanted.pattern) return listing.paths;
  return user_error(fmt::format("`{}` was not listed when the graph was built", wanted.pattern));
}

}  // namespace

Result<BuildOrder> rebuild_order(std::shared_ptr<const Plan> plan, const RunContext& context) {
  auto bundle = decode_bundle(*context.bundle);
  FLOW_TRY(bundle);
  BuildOrder order;
  order.root = bundle->root;
  order.main = bundle->main;
  order.pinned = *context.bundle;
  order.params = context.record.params;
  order.working_directory = context.record.directory;
  if (!plan->listings.empty()) {
    // The folder on the machine that submitted, from which the paths in the listings start.
    order.root = plan->listings.front().folder;
    order.list_inputs = [listed = std::move(plan)](const InputPattern& wanted) {
      return listed_before(*listed, wanted);
    };
  }
  return order;
}

void add_tag_calls(BuildOrder& order, uint32_t node, const Value& items) {
  BuildOrder::TagOrder& tags = order.tags.emplace();
  tags.node = node;
  for (const Value& item : items.as_table().list) tags.items.push_back(encode_value(item));
  add_time(order, tags.items.size());
}

Result<std::vector<std::string>> tags_of(const Result<BuildReply>& reply) {
  FLOW_TRY(reply);
  if (!reply->errors.empty()) return user_error(reply->errors.front());
  return reply->tags;
}

void add_time(BuildOrder& order, size_t calls) {
  order.time_limit_ms += static_cast<int64_t>(calls) * kMsPerCall;
}

}  // namespace flow
