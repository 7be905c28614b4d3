#include "engine/executor/side_stream.hpp"

#include <cstdlib>
#include <mutex>
#include <vector>

#include "kernels/cuda/device.hpp"
#include "kernels/tensor/runtime.hpp"

namespace flow {
namespace {

const tensors::Device kFirst{tensors::Device::cuda, 0};

/// While it lives, a first use of CUDA loads all kernels at once, and not each one at its first
/// launch: that may wait for the GPU, and so for a kernel of NCCL whose other ranks wait for this
/// one. The attempt's programs do not inherit the variable.
class EagerLoading {
 public:
  EagerLoading() : is_set_(std::getenv(kVariable) == nullptr) {
    if (is_set_) ::setenv(kVariable, "EAGER", 0);
  }
  ~EagerLoading() {
    if (is_set_) ::unsetenv(kVariable);
  }
  EagerLoading(const EagerLoading&) = delete;
  EagerLoading& operator=(const EagerLoading&) = delete;

 private:
  static constexpr const char* kVariable = "CUDA_MODULE_LOADING";
  const bool is_set_;
};

/// A stream next to the one for kernels, on the first GPU. Kernels run on the calling thread's
/// stream.
class SideStream final : public GpuStream {
 public:
  /// On failure nothing needs to be released.
  Status open();
  ~SideStream() override;

  Status select() override { return cuda::set_device(kFirst.index); }
  void* handle() const override { return stream_; }
  void* scratch() const override { return scratch_; }
  Result<void*> mark() override { return mark_on(stream_); }
  Result<bool> has_passed(void* mark) override { return cuda::has_completed(mark); }
  void forget(void* mark) override;
  Status follow() override;
  Status lead(void* mark) override { return cuda::follow_event(mark, kernels()); }

 private:
  static void* kernels() { return tensors::stream_of(kFirst).native; }
  Result<void*> mark_on(void* stream);

  void* stream_ = nullptr;
  char* scratch_ = nullptr;
  std::mutex mutex_;
  std::vector<void*> unused_;  // unused events
};

Status SideStream::open() {
  // The stream for kernels already exists, and its GPU is the current one of this thread.
  try {
    EagerLoading eager;
    tensors::prepare_device(kFirst);
  } catch (const tensors::TensorError& failure) {
    return environment_error(failure.what());
  }
  auto stream = cuda::new_stream();
  FLOW_TRY(stream);
  stream_ = *stream;
  auto scratch = cuda::allocate(sizeof(int32_t), stream_);
  FLOW_TRY(scratch);
  scratch_ = *scratch;
  return {};
}

// An error here was reported before.
SideStream::~SideStream() {
  for (void* event : unused_) (void)cuda::free_event(event);
  if (scratch_ != nullptr) (void)cuda::release(scratch_, stream_);
  if (stream_ != nullptr) (void)cuda::free_stream(stream_);
}

Result<void*> SideStream::mark_on(void* stream) {
  void* event = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!unused_.empty()) {
      event = unused_.back();
      unused_.pop_back();
    }
  }
  if (event == nullptr) {
    auto made = cuda::new_event();
    FLOW_TRY(made);
    event = *made;
  }
  Status recorded = cuda::record_event(event, stream);
  if (recorded.ok()) return event;
  forget(event);
  return recorded.error();
}

void SideStream::forget(void* mark) {
  std::lock_guard lock(mutex_);
  unused_.push_back(mark);
}

Status SideStream::follow() {
  auto now = mark_on(kernels());
  FLOW_TRY(now);
  Status followed = cuda::follow_event(*now, stream_);
  forget(*now);
  return followed;
}

}  // namespace

Result<std::shared_ptr<GpuStream>> make_side_stream() {
  auto stream = std::make_shared<SideStream>();
  FLOW_TRY(stream->open());
  return std::shared_ptr<GpuStream>(std::move(stream));
}

}  // namespace flow
