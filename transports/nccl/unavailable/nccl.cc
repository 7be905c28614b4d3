#include "transports/nccl/nccl.hpp"

namespace flow {
namespace {

Error left_out() {
  return environment_error(
      "this flow was built without NCCL (FLOW_NCCL=OFF): GPUs of a gang cannot communicate. "
      "Build it with FLOW_NCCL=AUTO");
}

}  // namespace

Result<std::string> nccl_version() { return left_out(); }

std::string nccl_path() { return ""; }

Result<std::unique_ptr<Rendezvous>> make_nccl_rendezvous(const NcclOptions&) { return left_out(); }

Result<std::unique_ptr<Communicator>> shrink_nccl(Communicator&, const std::vector<int>&) {
  return left_out();
}

std::string nccl_unavailable_reason(const std::vector<RankGpu>&) { return left_out().message; }

Result<GpuGang> join_gpus(const NcclOptions& options, const RankGpu&,
                          const std::function<Result<std::shared_ptr<GpuStream>>()>&) {
  return GpuGang{options.cpu_communicator, host_route_text(left_out().message)};
}

}  // namespace flow
