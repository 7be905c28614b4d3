// The same bits in each call, whatever else the GPU does.
#pragma once

namespace flow::gpu {

/// Calls operations that add in parallel `times` times each, with other work on a second stream and
/// scratch at other addresses, and compares the bits of their results. Prints a digest of each, by
/// which processes can be compared. `is_small`: tiny operands. Returns the number of operations
/// whose bits differed.
int check_same_bits(void* stream, int times, bool is_small);

}  // namespace flow::gpu
