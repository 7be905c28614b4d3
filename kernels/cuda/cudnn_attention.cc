// Attention by cuDNN where it supports it, and by flow's own kernels otherwise.
#include "kernels/cuda/cudnn_attention.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/cudnn_device.hpp"
#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cuda/errors.hpp"
#include "kernels/cuda/launchers.hpp"
#include "kernels/cuda/own_products.hpp"

namespace flow::cuda {
namespace dnn {
namespace {

// Plans are kept: graphs launch their kernels, and other streams may.
constexpr size_t kPlansMax = 1024;

std::string text_of(const AttentionNumbers& n) {
  Shape queries{n.batches, n.heads, n.queries, n.width}, keys{n.batches, n.groups, n.keys, n.width};
  return std::string(dtype_name(n.type == kHalf ? DType::f16 : DType::bf16)) + ", queries " +
         kernels::text_of(queries) + ", keys " + kernels::text_of(keys) +
         (n.causal ? ", causal" : "") + (n.is_backward ? ", gradients" : "");
}

}  // namespace

// One call, with its memory from the scratch.
struct DnnLibrary::AttentionRun {
  const DnnCalls& calls;
  Stream& stream;
  const AttentionCall& call;
  const AttentionPlan& plan;
  CudnnHandle handle;

  AttentionMemory memory{};

  bool take() {
    Scratch& scratch = stream.scratch;
    const View* operands[kOperands] = {call.q,    call.k,  call.v,  call.out,
                                       call.grad, call.dq, call.dk, call.dv};
    for (int i = 0; i < kOperands; i++)
      memory.operands[i] = operands[i] ? operands[i]->data : nullptr;
    memory.scale = static_cast<float>(call.options.scale);
    memory.stats = scratch.take<float>(plan.numbers().rows());
    if (plan.numbers().is_backward) memory.delta = scratch.take<float>(plan.numbers().rows());
    // cuDNN needs an address even if it needs no memory.
    memory.workspace =
        scratch.take<char>(static_cast<int64_t>(std::max<size_t>(plan.workspace(), 1)));
    return scratch.used <= scratch.bytes;
  }
  int run(int& status) {
    View stats = dense(DType::f32, call.lse->shape, memory.stats);
    bool is_backward = plan.numbers().is_backward;
    if (is_backward)
      if (int error = copy(stream, *call.lse, stats)) return error;
    status = execute(calls, stream, handle, plan, memory);
    if (status != kSuccess || is_backward) return kDone;
    return copy(stream, stats, *call.lse);
  }
  static int execute(const DnnCalls& calls, const Stream& stream, CudnnHandle handle,
                     const AttentionPlan& plan, const AttentionMemory& memory) {
    int status = calls.SetStream(handle, stream.native);
    if (status != kSuccess) return status;
    return queue_on_device([&plan, handle, memory] { return plan.run(handle, memory); });
  }
};

DnnLibrary::AttentionEntry* DnnLibrary::entry_of(const Stream& stream, int device,
                                                 const AttentionNumbers& numbers) {
  std::pair<int, AttentionNumbers> key{device, numbers};
  auto found = plans_.find(key);
  if (found != plans_.end()) return &found->second;
  if (is_recording(stream)) return nullptr;
  if (plans_.size() < kPlansMax) return &plans_[key];
  if (!plans_are_full_)
    warn_attempt("this process has plans of cuDNN for attention of " + std::to_string(kPlansMax) +
                 " shapes: flow's own kernels compute further ones");
  plans_are_full_ = true;
  return nullptr;
}

// It may pass: the GPU was full, for example.
void DnnLibrary::put_off(AttentionEntry& entry, const AttentionNumbers& numbers,
                         const std::string& why) {
  if (entry.tries++ == 0)
    warn_attempt("flow's own kernels compute attention (" + text_of(numbers) + "): " + why +
                 ". cuDNN is tried again at the next calls, " + std::to_string(kTriesMax) +
                 " times in all");
  if (entry.tries >= kTriesMax) entry.state = AttentionState::refused;
}

void DnnLibrary::make_plan(CudnnHandle handle, int device, const AttentionNumbers& numbers,
                           AttentionEntry& entry) {
  if (!supports(numbers, calls_.GetVersion(), capability_of(device))) {
    entry.state = AttentionState::refused;
    return;
  }
  auto plan = std::make_unique<AttentionPlan>(calls_, numbers);
  int status = plan->make(handle, nullptr, kWorkspaceMax);
  if (status == kSuccess)
    entry.plan = std::move(plan);
  else if (is_refusal(status))
    entry.state = AttentionState::refused;
  else
    put_off(entry, numbers, text() + " made no plan: " + calls_.GetErrorString(status));
}

// Makes and checks the plan of a shape, before its first use.
int DnnLibrary::settle(Stream& stream, int device, const AttentionNumbers& numbers,
                       AttentionEntry& entry) {
  CudnnHandle handle = handle_of(stream, device);
  if (!handle) return kDone;
  if (!entry.plan) make_plan(handle, device, numbers, entry);
  if (!entry.plan) return kDone;
  AttentionFinding finding =
      check_attention(stream, device, *entry.plan, [&](const AttentionMemory& memory) {
        return AttentionRun::execute(calls_, stream, handle, *entry.plan, memory);
      });
  if (finding.code != kDone) return finding.code;
  if (!finding.has_memory)
    put_off(entry, numbers, "the GPU has no memory to check cuDNN's kernel");
  else if (is_refusal(finding.status))
    entry.state = AttentionState::refused;
  else if (finding.status != kSuccess)
    put_off(entry, numbers, text() + " failed: " + calls_.GetErrorString(finding.status));
  else if (!finding.problem.empty())
    distrust(numbers, finding.problem);
  else
    entry.state = AttentionState::ready;
  return kDone;
}

// flow's own kernels then compute this call and all later ones.
void DnnLibrary::distrust(const AttentionNumbers& numbers, const std::string& problem) {
  attention_problem_ =
      text() + " computes attention wrongly (" + text_of(numbers) + "): " + problem;
  warn_attempt(attention_problem_ +
               ". flow's own kernels compute attention in this process from now on");
}

int DnnLibrary::run(Stream& stream, int device, const AttentionCall& call) {
  AttentionNumbers numbers;
  if (!works() || !numbers_of(call, numbers)) return kUnsupported;
  std::lock_guard hold(mutex_);
  if (!attention_problem_.empty()) return kUnsupported;
  AttentionEntry* entry = entry_of(stream, device, numbers);
  if (!entry) return kUnsupported;
  if (entry->state == AttentionState::unsettled && !is_recording(stream))
    if (int code = settle(stream, device, numbers, *entry)) return code;
  if (entry->state != AttentionState::ready || !attention_problem_.empty()) return kUnsupported;
  return run(stream, device, call, *entry);
}

int DnnLibrary::run(Stream& stream, int device, const AttentionCall& call, AttentionEntry& entry) {
  AttentionRun run{calls_, stream, call, *entry.plan, handle_of(stream, device)};
  size_t used = stream.scratch.used;
  if (!run.take()) {
    size_t bytes = stream.scratch.needed + stream.scratch.needed / 4;  // as the caller grows it
    if (is_recording(stream) || LibraryMemory(stream, device, bytes).data()) return kNeedsScratch;
    stream.scratch.used = used;
    put_off(entry, entry.plan->numbers(),
            "the GPU has no " + std::to_string(bytes) + " bytes for cuDNN's kernel");
    return kUnsupported;
  }
  int status = kSuccess;
  int code = run.run(status);
  if (code != kDone) return code;
  stream.scratch.used = used;
  if (is_refusal(status)) {  // nothing was queued on the stream
    entry.state = AttentionState::refused;
    return kUnsupported;
  }
  return status == kSuccess ? kDone : kDnnErrors + status;
}

std::string DnnLibrary::attention_problem() {
  std::lock_guard hold(mutex_);
  return attention_problem_;
}

namespace {

std::atomic<int64_t> attention_asked{0}, attention_done{0};

// 0: cuDNN may compute attention, otherwise the code to return.
int attention_variable() {
  static const int code = [] {
    const char* text = std::getenv(kAttentionVariable);
    std::string value = text ? text : "";
    if (value == "own") return kUnsupported;
    return value.empty() ? 0 : kAttentionVariableError;
  }();
  return code;
}

int attend(Stream& stream, const AttentionCall& call) {
  if (int code = attention_variable()) return code;
  AttentionNumbers numbers;
  if (!numbers_of(call, numbers)) return kUnsupported;  // before the library is loaded
  int code = kDone;
  DnnLibrary* library = library_in_use(code);
  if (!library) return code;
  int device = 0;
  if (int error = current_device(device)) return error;
  code = library->run(stream, device, call);
  if (code == kNeedsScratch) return code;
  attention_asked++;
  if (code == kDone) attention_done++;
  return code;
}

}  // namespace
}  // namespace dnn

AttentionUse attention_use() {
  AttentionUse use{dnn::attention_asked, dnn::attention_done, dnn::attention_variable() != 0, ""};
  int code = kDone;
  if (use.asked > 0)
    if (dnn::DnnLibrary* library = dnn::library_in_use(code))
      use.problem = library->attention_problem();
  return use;
}

int attention(Stream& stream, Attention options, const View& q, const View& k, const View& v,
              const View& out, const View& lse) {
  int code = dnn::attend(stream, {options, &q, &k, &v, &out, &lse});
  return code == kUnsupported ? own_attention(stream, options, q, k, v, out, lse) : code;
}

int attention_backward(Stream& stream, Attention options, const View& q, const View& k,
                       const View& v, const View& out, const View& lse, const View& grad,
                       const View& dq, const View& dk, const View& dv) {
  int code = dnn::attend(stream, {options, &q, &k, &v, &out, &lse, &grad, &dq, &dk, &dv});
  return code == kUnsupported
             ? own_attention_backward(stream, options, q, k, v, out, lse, grad, dq, dk, dv)
             : code;
}

}  // namespace flow::cuda
