// What the numbers that launchers return mean.
#pragma once

namespace flow::cuda {

/// cuBLASLt's statuses begin here; below are CUDA's errors.
constexpr int kLtErrors = 1'000'000;

const char* error_text(int code);

}  // namespace flow::cuda
