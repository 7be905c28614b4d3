// A run as a Workflow Run RO-Crate, profile Provenance Run Crate 0.5: a folder with the code, the
// files of all tasks, the result, and ro-crate-metadata.json, which describes them.
#pragma once
#include <string>

#include "engine/exports/provenance.hpp"

namespace flow {

/// Writes the crate and returns the path of its metadata, which is written last. `agent`: the name
/// of the user. Throws Failed.
std::string write_ro_crate(const Provenance& provenance, const std::string& directory,
                           const std::string& agent);

}  // namespace flow
