// Forgetting: old runs, and content that no run and no cache entry needs.
#pragma once
#include <cstdint>

#include "engine/driver/driver.hpp"

namespace flow {

/// Keeps the newest `keep` finished runs and every unfinished one; returns the bytes freed.
Result<uint64_t> collect_garbage(Driver& driver, uint32_t keep);

}  // namespace flow
