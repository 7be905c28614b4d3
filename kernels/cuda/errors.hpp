// What the numbers that launchers return mean.
#pragma once

namespace flow::cuda {

/// cuBLASLt's statuses and cuDNN's begin here; below are CUDA's errors. kDnnErrors itself: there is
/// no cuDNN where the environment names one.
constexpr int kLtErrors = 1'000'000, kDnnErrors = 2'000'000;

const char* error_text(int code);

}  // namespace flow::cuda
