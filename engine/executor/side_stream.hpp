// A stream of the process's first GPU beside that of its kernels, for what goes on between GPUs.
#pragma once
#include <memory>

#include "transports/nccl/nccl.hpp"

namespace flow {

/// On the thread whose kernels are to be in order with it. An error where the GPU cannot be used.
Result<std::shared_ptr<GpuStream>> make_side_stream();

}  // namespace flow
