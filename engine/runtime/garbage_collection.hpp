// Removes old runs, and blobs that no run and no cache entry needs.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "engine/runtime/engine_loop.hpp"

namespace flow {

/// Keeps the newest `keep` finished runs, those that `watched` names, and all unfinished ones.
/// Returns the number of bytes freed. `watched` is called when no more runs can be submitted.
Result<uint64_t> collect_garbage(EngineLoop& engine_loop, uint32_t keep,
                                 const std::function<std::set<std::string>()>& watched = nullptr);

}  // namespace flow
