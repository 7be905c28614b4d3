#include "engine/cluster/transfer/bundle_users.hpp"

namespace flow::cluster {

bool BundleUsers::add(const core::RunId& run, const Digest& bundle) {
  if (!of_runs_[run].insert(bundle).second) return false;
  return runs_of_[bundle]++ == 0;
}

std::vector<Digest> BundleUsers::forget(const core::RunId& run) {
  std::vector<Digest> unused;
  auto bundles = of_runs_.find(run);
  if (bundles == of_runs_.end()) return unused;
  for (const Digest& bundle : bundles->second) {
    auto users = runs_of_.find(bundle);
    if (--users->second > 0) continue;
    runs_of_.erase(users);
    unused.push_back(bundle);
  }
  of_runs_.erase(bundles);
  return unused;
}

}  // namespace flow::cluster
