// The machine's clocks. The core never reads them: it is given the time.
#pragma once
#include <cstdint>

namespace flow {

int64_t now_ms();         // since the Unix epoch
int64_t monotonic_us();   // since some moment; never goes back
int64_t since_boot_ms();  // the same, and counts the time that the machine was suspended

}  // namespace flow
