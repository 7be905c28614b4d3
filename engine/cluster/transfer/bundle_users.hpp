#pragma once
#include <map>
#include <set>
#include <vector>

#include "engine/core/types.hpp"
#include "flow/digest.hpp"

namespace flow::cluster {

/// Which bundles the runs of a session use. Both ends of a session keep one and see the same orders
/// and ends of runs in the same sequence, so they agree on the bundles that the worker has.
class BundleUsers {
 public:
  /// Returns true if no run of the session uses the bundle yet.
  bool add(const core::RunId& run, const Digest& bundle);
  /// The run has ended. Returns the bundles that only this run used.
  std::vector<Digest> forget(const core::RunId& run);

 private:
  // Runs that have not ended; entries leave in forget().
  std::map<core::RunId, std::set<Digest>> of_runs_;
  std::map<Digest, size_t> runs_of_;
};

}  // namespace flow::cluster
