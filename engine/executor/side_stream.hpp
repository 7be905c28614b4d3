// A second CUDA stream of the process's first GPU, for transfers between GPUs.
#pragma once
#include <memory>

#include "transports/nccl/nccl.hpp"

namespace flow {

/// Call this on the thread whose kernels the stream is ordered with. Error if the GPU cannot be
/// used.
Result<std::shared_ptr<GpuStream>> make_side_stream();

}  // namespace flow
