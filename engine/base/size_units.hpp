// Sizes, durations and times in human-readable form.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

/// "512M", "2GiB", "1.5G", "100KB", "4096". K M G T and KiB MiB GiB TiB are powers of 1024; KB MB
/// GB TB are powers of 1000. Case does not matter.
Result<int64_t> parse_bytes(std::string_view text);

/// "10m", "2d", "2ms", "1.5s", "1h30m", "0". Units: us, ms, s, m, h, d. A number alone is an error
/// that asks for a unit.
Result<int64_t> parse_duration_ms(std::string_view text);  // a part of a millisecond counts whole
Result<int64_t> parse_duration_us(std::string_view text);

std::string format_bytes(uint64_t bytes);      // "512 B", "1.5 GiB"
std::string format_duration(int64_t time_ms);  // "450ms", "1.25s", "2m 3s", "1h 5m", "3d 4h"
std::string format_time(int64_t time_ms);      // since the Unix epoch: "2026-11-21T05:17:00.123Z"

}  // namespace flow
