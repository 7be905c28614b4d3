// The two clocks. The core never reads them: it is given the time.
#pragma once
#include <cstdint>
#include <string>

namespace flow {

int64_t now_ms();        // since the Unix epoch
int64_t monotonic_us();  // since some moment; never goes back

/// "2026-11-21T05:17:00.123Z"
std::string format_time(int64_t time_ms);

}  // namespace flow
