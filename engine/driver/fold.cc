// Freezing and thawing runs by the snapshot codec, so that there is one encoding of a run.
#include "engine/driver/fold.hpp"

namespace flow {

std::string freeze(const core::Run& run) {
  core::State state;
  state.runs.emplace(run.id, run);
  return encode_snapshot(state);
}

FindPlan find_plan_in(const Blobs& blobs) {
  return [&blobs](const Digest& digest) -> std::shared_ptr<const Plan> {
    auto bytes = blobs.get(digest);
    if (!bytes.ok()) return nullptr;
    auto plan = decode_plan(*bytes);
    if (!plan.ok()) return nullptr;
    return std::make_shared<const Plan>(std::move(*plan));
  };
}

FindFragment find_fragment_in(const Blobs& blobs) {
  return [&blobs](const Digest& digest) -> std::shared_ptr<const PlanFragment> {
    auto bytes = blobs.get(digest);
    if (!bytes.ok()) return nullptr;
    auto fragment = decode_fragment(*bytes);
    if (!fragment.ok()) return nullptr;
    return std::make_shared<const PlanFragment>(std::move(*fragment));
  };
}

Result<core::State> thaw(std::string_view bytes, const Blobs& blobs) {
  return decode_snapshot(bytes, find_plan_in(blobs), find_fragment_in(blobs));
}

}  // namespace flow
