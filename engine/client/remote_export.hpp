// Exports a run's result from the head (the leading engine of a cluster) to a folder on the
// client's machine: the head sends the blobs and then the value that refers to them; the client
// writes the files from these blobs.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "engine/client/connection.hpp"
#include "flow/digest.hpp"

namespace flow {

/// Each distinct blob in `value` with the path of its source file; "" if it is stored in the state.
std::vector<std::pair<Digest, std::string>> blobs_of(const Value& value);
/// The same value without these paths, for a machine that does not have them.
Value strip_origins(const Value& value);

/// The client's side, after the request: receives the blobs and the value, and writes the result
/// into `directory`. Blocks. Returns the paths written. Throws Failed and then deletes the
/// downloaded blobs.
std::vector<std::string> receive_export(EngineConnection& connection, const std::string& name,
                                        const std::string& directory);

}  // namespace flow
