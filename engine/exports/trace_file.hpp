// A run as a timeline in the Trace Event Format, which Perfetto and chrome://tracing show.
#pragma once
#include <cstdint>
#include <string>

#include "engine/exports/provenance.hpp"

namespace flow {

/// The JSON object of the file. Attempts that run last until `now_ms`. Throws Failed.
std::string trace_file_of(const Provenance& provenance, int64_t now_ms);

}  // namespace flow
