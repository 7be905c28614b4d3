#include "engine/executor/gang_gpus.hpp"

#include "engine/executor/side_stream.hpp"
#include "kernels/tensor/runtime.hpp"

namespace flow {
namespace {

RankGpu place_of(const Attempt& attempt) {
  RankGpu place;
  place.uuid = attempt.start().gpus(0);
  if (kernels::cuda_kernels() == nullptr) {
    place.problem = "this flow was built without CUDA";
    return place;
  }
  auto version = nccl_version();
  if (version.ok())
    place.nccl = *version;
  else
    place.problem = version.error().message;
  return place;
}

}  // namespace

Result<GpuGang> join_gang_gpus(Attempt& attempt, const std::shared_ptr<Communicator>& cpus,
                               const std::string& gang, int64_t deadline_ms) {
  NcclOptions options;
  options.gang = gang;
  options.rank = cpus->rank();
  options.ranks = cpus->ranks();
  options.deadline_ms = deadline_ms;
  options.cpu_communicator = cpus;
  options.stops = [&] { return attempt.stopping() || !cpus->state().ok(); };
  auto joined = join_gpus(options, place_of(attempt), make_side_stream);
  if (!joined.ok() && attempt.stopping())
    return Error{ErrorKind::interrupted, "it was asked to stop"};
  return joined;
}

}  // namespace flow
