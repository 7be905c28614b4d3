// Which seeds a test plays, and what is said of the one that fails.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

namespace flow::sim {

struct Seeds {
  uint64_t first = 1, count = 0;
  bool is_one = false;
};
/// FLOW_SIM_SEED=n plays one seed; FLOW_SIM_SEEDS=n plays that many. Else `count` from 1 on. Of
/// seeds that take longer, one in `per_seed` is played.
Seeds seeds_to_play(uint64_t count, uint64_t per_seed = 1);

/// While it lives, a check of the engine that fails, and so ends the process, names the seed.
class SeedOnAbort {
 public:
  explicit SeedOnAbort(uint64_t seed);
  ~SeedOnAbort();
  SeedOnAbort(const SeedOnAbort&) = delete;
  SeedOnAbort& operator=(const SeedOnAbort&) = delete;
};

}  // namespace flow::sim
