// The HTML of a report. All data of the runs is Base64-encoded, so that no user text is parsed as
// HTML or script.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

/// `data` compressed (RFC 1950) and then in Base64.
std::string packed_data(std::string_view data);

/// The document with the views over `data`, which is JSON. `made_ms`: the time of the report, which
/// its scripts take as the present. Throws Failed (internal).
std::string report_document(std::string_view data, int64_t made_ms);

}  // namespace flow
