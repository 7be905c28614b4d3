// A finished run leaves the state as bytes of its own: enough to show it, explain it and take it up
// again.
#pragma once
#include <string>

#include "engine/core/core.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// A snapshot that holds this run alone.
std::string freeze(const core::Run& run);
/// The run back, in a State of its own.
Result<core::State> thaw(std::string_view bytes, const Blobs& blobs);

FindPlan find_plan_in(const Blobs& blobs);
FindFragment find_fragment_in(const Blobs& blobs);

}  // namespace flow
