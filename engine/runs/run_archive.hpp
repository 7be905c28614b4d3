// The archive of a finished run: enough to show, explain and resume it after it has left the state.
#pragma once
#include <optional>
#include <string>

#include "engine/core/core.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// The row of a finished run: its snapshot, or for a large run the digest of the blob with it,
/// which is durable.
Result<std::string> archive_run(const core::State& state, const core::Run& run, const Blobs& blobs);
/// Loads the run into a State of its own.
Result<core::State> load_archived_run(std::string_view archive, const Blobs& blobs);
/// The blob to which a row refers, if it does.
std::optional<Digest> archive_blob(std::string_view archive);

}  // namespace flow
