// A finished run leaves the state as bytes of its own: enough to show it, explain it and take it up
// again.
#pragma once
#include <optional>
#include <string>

#include "engine/core/core.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// The row of a finished run: its snapshot, or, of a large one, the name of the blob that holds it.
/// The blob goes into `batch`, or is durable now.
Result<std::string> archive_run(const core::State& state, const core::Run& run, Blobs& blobs,
                                Batch& batch);
/// The run back, in a State of its own.
Result<core::State> load_archived_run(std::string_view archive, const Blobs& blobs);
/// The blob that a row names, if it names one.
std::optional<Digest> archive_blob(std::string_view archive);

}  // namespace flow
