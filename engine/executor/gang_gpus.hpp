// Communication between the GPUs of a gang after its rendezvous: by NCCL if all ranks can use it,
// on the first GPU of each.
#pragma once
#include <memory>
#include <string>

#include "engine/executor/attempt.hpp"
#include "transports/nccl/nccl.hpp"

namespace flow {

/// Called by all ranks, on the thread that computes their tensors. Error of kind interrupted: the
/// attempt was asked to stop.
Result<GpuGang> join_gang_gpus(Attempt& attempt, const std::shared_ptr<Communicator>& cpus,
                               const std::string& gang, int64_t deadline_ms);

}  // namespace flow
