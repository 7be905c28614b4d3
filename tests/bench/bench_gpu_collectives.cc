// all_reduce of f32 on all GPUs of this machine, by ctx.comm and by direct NCCL calls in the same
// processes, in turns; the best of several rounds counts. On one GPU NCCL moves nothing: the
// figures are what the calls cost. Without a GPU or without NCCL it prints that and exits with 77.
// Usage: bench_gpu_collectives [rounds]   (default 5)
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "engine/executor/side_stream.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/tensor/ops.hpp"
#include "kernels/tensor/tensor.hpp"
#include "tests/bench/bench.hpp"
#include "tests/transports/collective/swap_addresses.hpp"
#include "transports/collective/collective.hpp"
#include "transports/nccl/calls.hpp"

using namespace flow;
using namespace flow::bench;

namespace {

constexpr int kSkipped = 77;
constexpr size_t kBytes[] = {size_t{1} << 10,  size_t{64} << 10, size_t{1} << 20,
                             size_t{16} << 20, size_t{64} << 20, size_t{256} << 20};
const tensors::Device kFirst{tensors::Device::cuda, 0};

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  fmt::print(stderr, "{}\n", result.error().message);
  ::_exit(1);
}
void must(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "{}\n", status.error().message);
  ::_exit(1);
}

/// NCCL without flow.
class Raw {
 public:
  Raw(Communicator& ranks, void* stream) : stream_(stream) {
    nccl::UniqueId id{};
    if (ranks.rank() == 0) calls_.get_unique_id(&id);
    must(ranks.run(broadcast(&id, sizeof id, DType::u8, 0)));
    nccl::Config config = nccl::config_of("raw");
    settle(calls_.init_rank(&handle_, ranks.ranks(), id, ranks.rank(), &config));
  }
  ~Raw() {
    settle(calls_.finalize(handle_));
    calls_.destroy(handle_);
  }
  Raw(const Raw&) = delete;
  void reduce(float* data, size_t count) {
    settle(calls_.all_reduce(data, data, count, nccl::kFloat32, nccl::kSum, handle_, stream_));
  }

 private:
  void settle(nccl::Code code) {
    while (code == nccl::kInProgress) calls_.get_async_error(handle_, &code);
    if (code != nccl::kSuccess) must(Status(environment_error(calls_.error_string(code))));
  }
  const nccl::NcclCalls& calls_ = nccl::library().calls;
  nccl::NcclHandle handle_ = nullptr;
  void* const stream_;
};

/// --rank RANK RANKS FOLDER ROUNDS. The first rank prints "bytes flow raw", in microseconds.
int be_rank(char** arguments) {
  GangOptions options;
  options.rank = std::atoi(arguments[2]);
  options.ranks = std::atoi(arguments[3]);
  std::string folder = arguments[4];
  options.gang = folder;
  options.deadline_ms = 60'000;
  auto rendezvous = must(make_rendezvous(options));
  auto addresses = swap_addresses(folder, options.rank, options.ranks, rendezvous->address());
  std::shared_ptr<Communicator> cpus = must(rendezvous->join(addresses));
  NcclOptions joining;
  joining.gang = folder;
  joining.rank = options.rank;
  joining.ranks = options.ranks;
  joining.cpu_communicator = cpus;
  RankGpu place{must(cuda::describe(0)).id, must(nccl_version()), ""};
  GpuGang gang = must(join_gpus(joining, place, make_side_stream));
  if (!gang.communicator->takes_device()) must(Status(environment_error(gang.route)));
  void* stream = tensors::stream_of(kFirst).native;
  {
    Raw raw(*cpus, stream);
    for (size_t bytes : kBytes) {
      auto count = static_cast<int64_t>(bytes / sizeof(float));
      auto x = tensors::Tensor::zeros(DType::f32, {count}, kFirst);
      auto* data = reinterpret_cast<float*>(x.view().data);
      auto time = [&](const std::function<void()>& reduce) {
        size_t times = std::clamp<size_t>((size_t{1} << 30) / bytes, 10, 500);
        reduce();
        tensors::wait_for(kFirst);
        must(cpus->run(barrier()));
        double began = seconds();
        for (size_t i = 0; i < times; i++) reduce();
        tensors::wait_for(kFirst);
        double took = (seconds() - began) / static_cast<double>(times);
        must(cpus->run(all_reduce(&took, &took, 1, DType::f64, ReduceOp::max)));
        return took * 1e6;
      };
      double flow = 1e18, own = 1e18;
      for (int round = 0; round < std::atoi(arguments[5]); round++) {
        flow = std::min(flow, time([&] {
                          CollectiveCall call =
                              all_reduce(data, data, count, DType::f32, ReduceOp::sum);
                          call.is_device = true;
                          must(gang.communicator->run(call));
                        }));
        own = std::min(own, time([&] { raw.reduce(data, static_cast<size_t>(count)); }));
      }
      if (options.rank == 0)
        figure(fmt::format("all_reduce_{}_gpus_{}_KiB_us", options.ranks, bytes >> 10), flow,
               "nccl", own);
    }
  }
  must(gang.communicator->run(leave()));
  return 0;
}

int skip(const std::string& why) {
  fmt::print("all_reduce between GPUs is not measured: {}\n", why);
  return kSkipped;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 6 && std::string(arguments[1]) == "--rank") return be_rank(arguments);
  auto gpus = cuda::device_count();
  if (!gpus.ok()) return skip(gpus.error().message);
  if (*gpus < 1) return skip("there is no GPU here");
  if (auto version = nccl_version(); !version.ok()) return skip(version.error().message);
  int rounds = count > 1 ? std::max(1, std::atoi(arguments[1])) : 5;
  std::string program = std::filesystem::absolute(arguments[0]).string();
  Folder folder;
  std::vector<int> codes(static_cast<size_t>(*gpus));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < *gpus; rank++)
    ranks.emplace_back([&, rank] {
      std::string command =
          fmt::format("CUDA_VISIBLE_DEVICES={} '{}' --rank {} {} {} {}",
                      must(cuda::describe(rank)).id, program, rank, *gpus, folder.path(), rounds);
      codes[static_cast<size_t>(rank)] = std::system(command.c_str());
    });
  for (std::thread& rank : ranks) rank.join();
  return std::all_of(codes.begin(), codes.end(), [](int code) { return code == 0; }) ? 0 : 1;
}
