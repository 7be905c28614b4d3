// A result from a head into a folder of another machine: its content by frames, then as copy_out.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "engine/client/connection.hpp"
#include "flow/digest.hpp"

namespace flow {

/// The content of `value`, each once, and where it is read in place ("" for the state's own).
std::vector<std::pair<Digest, std::string>> blobs_of(const Value& value);
/// The same value for a machine that does not see those places.
Value strip_origins(const Value& value);

/// The client's side: all content that the head sends, then the value of its last frame, into
/// `directory`; the paths written. Throws Failed.
std::vector<std::string> receive_export(EngineConnection& connection, const std::string& name,
                                        const std::string& directory);

}  // namespace flow
