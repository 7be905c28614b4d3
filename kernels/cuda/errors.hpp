// The error codes that launchers return.
#pragma once

namespace flow::cuda {

/// First codes of cuBLASLt's and cuDNN's statuses; lower codes are CUDA's errors. Each
/// of the two itself: the environment names a library that cannot be loaded.
constexpr int kLtErrors = 1'000'000, kDnnErrors = 2'000'000;
/// FLOW_ATTENTION has an unknown value.
constexpr int kAttentionVariableError = 3'000'000;

const char* error_text(int code);

}  // namespace flow::cuda
