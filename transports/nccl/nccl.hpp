// Collectives between GPUs, by NCCL, which is loaded when it is first needed.
//
// A call is queued on the rank's stream; its work is done when the GPU has finished it. Calls of
// one stream run in order, sends and receives too: two ranks that both send first wait for each
// other. Sums by NCCL may be rounded differently than on CPUs. A communicator that fails here is
// aborted; the supervisor of the gang notifies the others.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flow/collective.hpp"

namespace flow {

/// Path of the library instead of the libnccl.so.2 that is found; "off" disables NCCL.
constexpr const char* kNcclVariable = "FLOW_NCCL_LIB";

/// A stream of one rank's GPU, separate from the stream of its kernels, implemented by the CUDA
/// code. Thread-safe.
class GpuStream {
 public:
  virtual ~GpuStream() = default;
  /// Makes its GPU the calling thread's current one.
  virtual Status select() = 0;
  virtual void* handle() const = 0;   // a cudaStream_t
  virtual void* scratch() const = 0;  // 4 bytes of the GPU's memory, for barriers
  /// An event behind the work that is queued now.
  virtual Result<void*> mark() = 0;
  /// Never blocks. Returns an error of the GPU.
  virtual Result<bool> has_passed(void* mark) = 0;
  virtual void forget(void* mark) = 0;
  // Called by the thread that queues kernels; neither waits:

  /// Later work on this stream runs after the work that this thread has queued so far.
  virtual Status follow() = 0;
  /// Later work that this thread queues runs after the mark.
  virtual Status lead(void* mark) = 0;
};

struct NcclOptions {
  std::string gang;
  int rank = 0, ranks = 1;
  std::shared_ptr<GpuStream> stream;
  int64_t join_ms = 60'000;
  int64_t deadline_ms = 0;  // of a collective on the GPU; 0: no limit
  /// The same ranks on CPUs: if either communicator ends, so does the other, with the same cause.
  std::shared_ptr<Communicator> cpu_communicator;
  std::function<bool()> stops;  // if set: whether to stop joining
};

/// An error if NCCL is missing or must not be used: the cause, and what to do.
Result<std::string> nccl_version();  // "NCCL 2.28.9"
std::string nccl_path();             // the file; "": none was found

Result<std::unique_ptr<Rendezvous>> make_nccl_rendezvous(const NcclOptions& options);

/// A communicator of the remaining ranks, called by each of them; calls in flight on the old one
/// are aborted. Ranks are renumbered in their order.
Result<std::unique_ptr<Communicator>> shrink_nccl(Communicator& communicator,
                                                  const std::vector<int>& without);

/// The GPU of a rank, as the ranks of a gang send it to each other.
struct RankGpu {
  std::string uuid;
  std::string nccl;     // its version, from nccl_version()
  std::string problem;  // why NCCL cannot be used here; empty if it can
};
/// Why these ranks' GPUs cannot use NCCL, for people; empty if they can.
std::string nccl_unavailable_reason(const std::vector<RankGpu>& ranks);

/// The route of a gang without NCCL.
inline std::string host_route_text(const std::string& why) {
  return "tensors on GPUs go through the hosts' memory, not by NCCL: " + why;
}

struct GpuGang {
  std::shared_ptr<Communicator> communicator;
  std::string route;  // which route it is and why, for people
};
/// Called by all ranks of options.cpu_communicator. If every GPU supports it, collectives on GPU
/// memory use NCCL and all others stay on CPUs; otherwise `communicator` is the CPU communicator.
/// On GPU memory run() and wait() do not wait for the GPU: later work of the calling thread runs
/// after the call. Failures there are returned by state() and by later calls. An error: the ranks
/// have lost each other.
Result<GpuGang> join_gpus(const NcclOptions& options, const RankGpu& own,
                          const std::function<Result<std::shared_ptr<GpuStream>>()>& make_stream);

}  // namespace flow
