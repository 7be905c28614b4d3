// Operands with more elements than 32 bits can count.
#pragma once
#include <cstdint>

namespace flow::gpu {

/// More than 2^31, in rows of kLargeColumns.
constexpr int64_t kLargeColumns = 4096;
constexpr int64_t kLargeElements = (int64_t{1} << 31) + kLargeColumns;

/// Runs copy, cast, add, sum, softmax, gather and a transposition on bf16 operands of that many
/// elements, a multiple of kLargeColumns, and compares parts of the results with the CPU's. Needs 9
/// bytes of memory per element, and scratch. Returns the number of wrong operations.
int check_large(void* stream, int64_t elements);

}  // namespace flow::gpu
