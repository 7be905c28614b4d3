// Changes of a task as lines of text, with the changed lines of its functions.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/plan/plan.hpp"
#include "engine/query/key_changes.hpp"
#include "engine/runs/run_rows.hpp"

namespace flow {

/// Reads the code of runs. `blobs` outlives it.
class ChangedSources {
 public:
  explicit ChangedSources(const Blobs& blobs) : blobs_(blobs) {}
  /// One line per change, each after "\n" and `indent`; a changed function is followed by its
  /// changed lines, from the code of the runs `before` and `now`.
  std::string text_of(const std::vector<KeyChange>& changes, const RunRecord& before,
                      const RunRecord& now, const std::string& indent);

 private:
  const Bundle& bundle(const Digest& digest);

  const Blobs& blobs_;
  std::map<Digest, Bundle> bundles_;  // one for each run that is compared; empty if collected
};

}  // namespace flow
