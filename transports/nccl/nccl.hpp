// Collectives between GPUs, by NCCL, which is loaded when it is needed.
//
// A call is queued on the rank's stream and goes on there; its work is done when the GPU is
// through. Calls of one stream go one behind the other, sends and receives too: two ranks that both
// send first wait for each other. What NCCL itself adds up it may round otherwise than the CPU's
// ranks do. A communicator that fails here is aborted; the others are told by whoever runs the
// gang.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flow/collective.hpp"

namespace flow {

/// Names another library than the system's libnccl.so.2; "off" leaves NCCL out.
constexpr const char* kNcclVariable = "FLOW_NCCL_LIB";

/// A stream of one rank's GPU, beside that of its kernels, by whoever has CUDA. Thread-safe.
class GpuStream {
 public:
  virtual ~GpuStream() = default;
  /// Makes its GPU the calling thread's.
  virtual Status select() = 0;
  virtual void* handle() const = 0;   // a cudaStream_t
  virtual void* scratch() const = 0;  // 4 bytes of the GPU's memory, for barriers
  /// A place in the stream, behind what is queued now.
  virtual Result<void*> mark() = 0;
  /// Never blocks. An error of the GPU's is told here.
  virtual Result<bool> has_passed(void* mark) = 0;
  virtual void forget(void* mark) = 0;
  // Of the thread that queues kernels; neither waits:

  /// What is put on this stream from now on comes after what this thread has asked of the GPU.
  virtual Status follow() = 0;
  /// What this thread asks of the GPU from now on comes after the mark.
  virtual Status lead(void* mark) = 0;
};

struct NcclOptions {
  std::string gang;
  int rank = 0, ranks = 1;
  std::shared_ptr<GpuStream> stream;
  int64_t join_ms = 60'000;
  int64_t deadline_ms = 0;  // of a collective on the GPU; 0: none
  /// The same ranks on CPUs: its end ends this one, with its cause, and the other way round.
  std::shared_ptr<Communicator> cpu_communicator;
  std::function<bool()> stops;  // where set: whether joining is to be given up
};

/// An error where there is no NCCL, or one that must not be used: which, and what to do.
Result<std::string> nccl_version();  // "NCCL 2.28.9"

Result<std::unique_ptr<Rendezvous>> make_nccl_rendezvous(const NcclOptions& options);

/// A communicator of those that are left, called by each of them; what is under way on the old one
/// is ended. Ranks are counted anew, in their order.
Result<std::unique_ptr<Communicator>> shrink_nccl(Communicator& communicator,
                                                  const std::vector<int>& without);

/// What the ranks of a gang tell each other of their GPUs.
struct RankGpu {
  std::string uuid;
  std::string nccl;     // its version, as nccl_version() tells
  std::string problem;  // why NCCL cannot be used here; empty where it can
};
/// Why these ranks' GPUs cannot talk by NCCL, for people; empty where they can.
std::string nccl_unavailable_reason(const std::vector<RankGpu>& ranks);

/// The road of a gang without NCCL.
inline std::string host_route_text(const std::string& why) {
  return "tensors on GPUs go through the hosts' memory, not by NCCL: " + why;
}

struct GpuGang {
  std::shared_ptr<Communicator> communicator;
  std::string route;  // which it is and why, for people
};
/// Called by all ranks of options.beside. Where every GPU can, collectives on GPUs' memory are
/// NCCL's and all else goes on as before; else `communicator` is that of before. On a GPU's memory
/// run() and wait() do not wait for the GPU: what the calling thread asks of it next comes
/// after the call. What fails there is told by state() and by later calls. An error: the ranks have
/// lost each other.
Result<GpuGang> join_gpus(const NcclOptions& options, const RankGpu& own,
                          const std::function<Result<std::shared_ptr<GpuStream>>()>& make_stream);

}  // namespace flow
