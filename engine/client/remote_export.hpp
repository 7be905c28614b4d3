// Exports a result of a head into a folder of the client's machine: the head sends its blobs and
// then the value that names them; the client writes the files from these.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "engine/client/connection.hpp"
#include "flow/digest.hpp"

namespace flow {

/// The blobs of `value`, each once, and the path of a file that is read in place; "" for a blob of
/// the state.
std::vector<std::pair<Digest, std::string>> blobs_of(const Value& value);
/// The same value without these paths, for a machine that does not have them.
Value strip_origins(const Value& value);

/// The client's side, after the request: receives the blobs and the value, and writes the result
/// into `directory`. Returns the paths written. Throws Failed; nothing of the blobs stays then.
std::vector<std::string> receive_export(EngineConnection& connection, const std::string& name,
                                        const std::string& directory);

}  // namespace flow
