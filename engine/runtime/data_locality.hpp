// Where the inputs of ready units lie, for the scheduler: what workers have said, of the large
// content that the units' keys were made of.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/cluster/transfer/blob_directory.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/sched/sched.hpp"

namespace flow {

/// For as long as the hosts of the state are the same. What is not asked costs nothing.
class InputLocality final : public core::InputLocations {
 public:
  InputLocality(const core::State& state, const InputResolver& resolver,
                const cluster::BlobDirectory& blob_directory)
      : state_(state), resolver_(resolver), blob_directory_(blob_directory) {}
  std::vector<std::pair<core::WorkerId, uint64_t>> of(const core::Run& run,
                                                      core::UnitId unit) const override;

 private:
  const core::State& state_;
  const InputResolver& resolver_;
  const cluster::BlobDirectory& blob_directory_;
  mutable std::map<std::string, core::WorkerId> workers_;  // once one was asked for
};

}  // namespace flow
