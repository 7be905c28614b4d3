// The environments below STATE/environments that flow has built from files of packages.
//
// KEY is a link to KEY.RANDOM, the folder in which it was built: programs in an environment hold
// its path, so a finished one is never moved. The link is made when everything is there.
#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "flow/result.hpp"

namespace flow {

/// The right to build or remove one environment, for one process at a time.
class EnvironmentLock {
 public:
  EnvironmentLock(const std::string& environments, const std::string& key);
  ~EnvironmentLock();
  EnvironmentLock(const EnvironmentLock&) = delete;
  EnvironmentLock& operator=(const EnvironmentLock&) = delete;
  /// False if another process holds it. Error if the file cannot be locked.
  Result<bool> try_acquire() const;

 private:
  int descriptor_;
};

/// The folder of a finished environment, or "".
std::string finished_environment(const std::string& environments, const std::string& key);
/// Makes `name`, a folder in `environments`, the finished environment.
Status publish_environment(const std::string& environments, const std::string& key,
                           const std::string& name);
/// Removes the folders of builds that did not finish. Requires the lock.
void remove_unfinished_environments(const std::string& environments, const std::string& key);
/// Removes the environments whose keys are not in `needed`, unless one is being built. Returns the
/// number of bytes freed.
uint64_t remove_unused_environments(const std::string& environments,
                                    const std::set<std::string>& needed);

}  // namespace flow
