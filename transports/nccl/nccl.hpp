// Collectives between GPUs, by NCCL, which is loaded when it is needed.
//
// A call is queued on the rank's stream and goes on there; its work is done when the GPU is
// through. Calls of one stream go one behind the other, sends and receives too: two ranks that both
// send first wait for each other. What NCCL itself adds up it may round otherwise than the CPU's
// ranks do. A communicator that fails here is aborted; the others are told by whoever runs the
// gang.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "flow/collective.hpp"

namespace flow {

/// Names another library than the system's libnccl.so.2.
constexpr const char* kNcclVariable = "FLOW_NCCL_LIB";

/// The stream of one rank's GPU, by whoever has CUDA. Thread-safe.
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
};

struct NcclOptions {
  std::string gang;
  int rank = 0, ranks = 1;
  std::shared_ptr<GpuStream> stream;
  int64_t join_ms = 60'000;
  int64_t deadline_ms = 0;  // of a collective on the GPU; 0: none
};

/// An error where there is no NCCL, or one that must not be used: which, and what to do.
Result<std::string> nccl_version();

Result<std::unique_ptr<Rendezvous>> make_nccl_rendezvous(const NcclOptions& options);

/// A communicator of those that are left, called by each of them; what is under way on the old one
/// is ended. Ranks are counted anew, in their order.
Result<std::unique_ptr<Communicator>> shrink_nccl(Communicator& communicator,
                                                  const std::vector<int>& without);

}  // namespace flow
