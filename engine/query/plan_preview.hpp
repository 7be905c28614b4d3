// `flow plan`: which task instances the cache would serve, and why the others would run.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "engine/core/core.hpp"
#include "engine/query/preview_tags.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/cache_lookup.hpp"
#include "engine/runtime/commits.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/runtime/turn_blobs.hpp"
#include "engine/store/store.hpp"
#include "engine/submission/requirements.hpp"
#include "engine/submission/submission.hpp"
#include "flow/flow.hpp"

namespace flow {

/// Runs the core on a scratch state that is never committed, with the entries of the cache. Reads
/// only. Used by one thread, while gc does not run.
class PlanPreview {
 public:
  struct Machine {
    int32_t jobs = 1;  // CPU slots
    ResourceQuantities custom_resources{};
  };
  /// `store` and `blobs` outlive the preview. `now` is a time of the state's clock.
  PlanPreview(const Store& store, Blobs& blobs, Machine machine, core::Time now);
  PlanPreview(const PlanPreview&) = delete;
  PlanPreview& operator=(const PlanPreview&) = delete;

  /// Each node of the plan with its verdict. With `resumed`: as the continuation of that run with
  /// `plan`; reasons compare with that run. Instances whose tags `tags` does not have are shown
  /// without.
  PlanInfo preview(const Plan& plan, bool fresh, const RunRecord* resumed = nullptr,
                   PreviewTags* tags = nullptr);

 private:
  class ScratchRun;

  const Store& store_;
  Blobs& blobs_;
  const Machine machine_;
  const core::Time now_;
  Commits staged_;  // holds only gathered values
  StopCause ignored_;
  TurnBlobs turn_blobs_;
  const CacheLookup cache_;
  InputResolver resolver_;
};

struct OfflinePreviewOptions {
  std::string state_dir, executor;
  PlanPreview::Machine machine{};
  std::optional<RequestedNodes> requested_nodes{};
};

/// Builds `submission` and previews its plan, also while another process writes the state. Runs no
/// task and writes nothing. A null `store` means that the state does not exist yet.
Result<PlanInfo> plan_preview_offline(const OfflinePreviewOptions& options, const Store* store,
                                      const Submission& submission);

}  // namespace flow
