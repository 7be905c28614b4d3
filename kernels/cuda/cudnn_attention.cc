// Attention by cuDNN where it supports it, and by flow's own kernels otherwise.
#include "kernels/cuda/cudnn_attention.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/cudnn_device.hpp"
#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cuda/errors.hpp"
#include "kernels/cuda/launchers.hpp"
#include "kernels/cuda/own_products.hpp"

namespace flow::cuda {
namespace dnn {
namespace {

constexpr size_t kPlansMax = 128;
// Checks of a plan that say nothing, before flow's own kernels compute its shape always.
constexpr int kUndecidedMax = 8;

View view_of(DType dtype, const Shape& shape, void* data) { return dense(dtype, shape, data); }

std::string text_of_call(const AttentionCall& call) {
  return std::string(dtype_name(call.q->dtype)) + ", queries " + text_of(call.q->shape) +
         ", keys " + text_of(call.k->shape) + (call.options.causal ? ", causal" : "");
}

// Three digits are enough for a log.
std::string text_of_number(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

}  // namespace

AttentionVerdict judge_rows(const std::vector<float>& differences,
                            const std::vector<float>& squares, DType dtype, int64_t width) {
  AttentionVerdict verdict;
  verdict.bound = dtype == DType::bf16 ? 1.0 / 8 : 1.0 / 64;
  double mean = 0;
  for (float each : squares) mean += static_cast<double>(each);
  mean /= static_cast<double>(std::max<size_t>(squares.size(), 1));
  double least =
      dtype == DType::f16 ? static_cast<double>(width) * std::ldexp(1.0, -24) : 0;  // 2^-12 each
  verdict.is_decided = std::isfinite(mean) && mean > least;
  if (!verdict.is_decided) return verdict;
  for (size_t i = 0; i < squares.size(); i++) {
    double apart = std::sqrt(static_cast<double>(differences[i]) /
                             std::max(static_cast<double>(squares[i]), mean));
    // Also of a result that is not finite.
    if (!(apart <= verdict.apart))
      verdict.apart = std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
  }
  return verdict;
}

AttentionVerdict judge_logarithms(const std::vector<double>& result,
                                  const std::vector<double>& reference) {
  AttentionVerdict worst;
  worst.bound = std::ldexp(1.0, -10);
  for (size_t i = 0; i < reference.size(); i++) {
    if (!std::isfinite(reference[i])) {
      worst.is_decided = false;
      return worst;
    }
    // Beyond the part of the bound that grows with the reference.
    double apart = std::fabs(result[i] - reference[i]) - std::ldexp(std::fabs(reference[i]), -14);
    if (!(apart <= worst.apart))
      worst.apart = std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
  }
  return worst;
}

// One call, with its memory from the scratch.
struct DnnLibrary::AttentionRun {
  DnnLibrary& library;
  Stream& stream;
  const AttentionCall& call;
  const AttentionNumbers numbers;
  AttentionPlan& plan;
  CudnnHandle handle;

  AttentionMemory memory{};
  // Of the check.
  View references[3]{};  // dense, of the results
  double* reference_lse = nullptr;
  float* row_sums = nullptr;  // two for each row
  size_t used_by_references = 0;

  int run() {
    bool fits = take();
    if (!fits) return kNeedsScratch;
    View stats = view_of(DType::f32, call.lse->shape, memory.stats);
    if (numbers.is_backward)
      if (int error = copy(stream, *call.lse, stats)) return error;
    int code = execute();
    if (code != kDone) return code;
    if (!numbers.is_backward)
      if (int error = copy(stream, stats, *call.lse)) return error;
    return plan.is_checked ? kDone : check();
  }

 private:
  std::vector<const View*> results() const {
    if (numbers.is_backward) return {call.dq, call.dk, call.dv};
    return {call.out};
  }
  static const char* name_of(bool is_backward, size_t result) {
    constexpr const char* kNames[] = {"dq", "dk", "dv"};
    return is_backward ? kNames[result] : "the result";
  }
  int64_t rows_of(const View& view) const { return view.shape[0] * view.shape[1] * view.shape[2]; }

  bool take() {
    Scratch& scratch = stream.scratch;
    const View* operands[kOperands] = {call.q,    call.k,  call.v,  call.out,
                                       call.grad, call.dq, call.dk, call.dv};
    for (int i = 0; i < kOperands; i++)
      memory.operands[i] = operands[i] ? operands[i]->data : nullptr;
    memory.scale = static_cast<float>(call.options.scale);
    memory.stats = scratch.take<float>(numbers.rows());
    if (numbers.is_backward) memory.delta = scratch.take<float>(numbers.rows());
    // cuDNN needs an address even if it needs no memory.
    memory.workspace =
        scratch.take<char>(static_cast<int64_t>(std::max<size_t>(plan.workspace(), 1)));
    if (!plan.is_checked) take_references();
    return scratch.used <= scratch.bytes;
  }
  void take_references() {
    Scratch& scratch = stream.scratch;
    int64_t most = 0;
    size_t at = 0;
    for (const View* result : results()) {
      char* data = scratch.take<char>(static_cast<int64_t>(result->bytes()));
      references[at++] = view_of(result->dtype, result->shape, data);
      most = std::max(most, rows_of(*result));
    }
    reference_lse = scratch.take<double>(numbers.rows());
    row_sums = scratch.take<float>(2 * most);
    used_by_references = scratch.used;
    // For flow's own backward, which takes it again: all memory is requested at once.
    if (numbers.is_backward) (void)scratch.take<float>(3 * numbers.rows());
  }

  int execute() {
    int status = library.calls_.SetStream(handle, stream.native);
    if (status == kSuccess) status = on_device([&] { return plan.run(handle, memory); });
    if (is_refusal(status)) {  // nothing was queued on the stream yet
      plan.works = false;
      return kUnsupported;
    }
    return status == kSuccess ? kDone : kDnnErrors + status;
  }

  int compute_references() {
    stream.scratch.used = used_by_references;
    if (numbers.is_backward)
      return own_attention_backward(stream, call.options, *call.q, *call.k, *call.v, *call.out,
                                    *call.lse, *call.grad, references[0], references[1],
                                    references[2]);
    return own_attention(stream, call.options, *call.q, *call.k, *call.v, references[0],
                         view_of(DType::f64, call.lse->shape, reference_lse));
  }

  // The results are kept only if they are those of flow's own kernels within rounding, and have the
  // same bits a second time.
  int check() {
    if (int code = compute_references()) return code;
    bool is_decided = true;
    if (!numbers.is_backward) {
      std::vector<double> result, reference;
      if (int code = read(result, call.lse->data)) return code;
      if (int code = read(reference, reference_lse)) return code;
      AttentionVerdict verdict = judge_logarithms(result, reference);
      is_decided = verdict.is_decided;
      if (is_decided && !verdict.is_right()) return distrust("the logarithm of a sum", verdict);
    }
    auto all = results();
    for (size_t i = 0; i < all.size(); i++) {
      AttentionVerdict verdict;
      if (int code = compare(*all[i], references[i], verdict)) return code;
      is_decided = is_decided && verdict.is_decided;
      if (verdict.is_decided && !verdict.is_right())
        return distrust(name_of(numbers.is_backward, i), verdict);
    }
    if (!is_decided) {  // flow's own kernels compute it until a result says something
      if (++plan.undecided == kUndecidedMax) plan.works = false;
      return kUnsupported;
    }
    int code = check_again(all);
    plan.is_checked = code == kDone;
    return code;
  }
  int check_again(const std::vector<const View*>& all) {
    for (size_t i = 0; i < all.size(); i++)
      if (int code = copy(stream, *all[i], references[i])) return code;
    if (int code = execute()) return code;
    for (size_t i = 0; i < all.size(); i++) {
      AttentionVerdict verdict;
      if (int code = compare(*all[i], references[i], verdict)) return code;
      verdict.bound = 0;
      if (verdict.is_decided && !verdict.is_right())
        return distrust(std::string("a second computation of ") + name_of(numbers.is_backward, i),
                        verdict);
    }
    return kDone;
  }
  int compare(const View& result, const View& reference, AttentionVerdict& verdict) {
    auto rows = static_cast<size_t>(rows_of(result));
    if (int code = row_differences(stream, result, reference, row_sums, row_sums + rows))
      return code;
    std::vector<float> sums(2 * rows);
    if (int code = read_back(stream, sums.data(), row_sums, sums.size() * sizeof(float)))
      return code;
    auto middle = sums.begin() + static_cast<std::ptrdiff_t>(rows);
    verdict = judge_rows({sums.begin(), middle}, {middle, sums.end()}, result.dtype, numbers.width);
    return kDone;
  }
  int read(std::vector<double>& to, const void* from) const {
    to.resize(static_cast<size_t>(numbers.rows()));
    return read_back(stream, to.data(), from, to.size() * sizeof(double));
  }

  // flow's own kernels then compute this call and all later ones.
  int distrust(const std::string& what, const AttentionVerdict& verdict) {
    std::string text = library.text() + " computes attention wrongly (" + text_of_call(call) +
                       "): " + what + " differs from that of flow's own kernel by " +
                       text_of_number(verdict.apart) + " where " + text_of_number(verdict.bound) +
                       " is expected at most";
    library.attention_problem_ = text;
    warn_attempt(text + ". flow's own kernels compute attention in this process from now on");
    return kUnsupported;
  }
};

AttentionPlan& DnnLibrary::plan_of(CudnnHandle handle, int device,
                                   const AttentionNumbers& numbers) {
  std::pair<int, AttentionNumbers> key{device, numbers};
  auto found = plans_.find(key);
  if (found != plans_.end()) return *found->second;
  if (plans_.size() >= kPlansMax) plans_.clear();
  auto plan = std::make_unique<AttentionPlan>(calls_, numbers);
  if (supports(numbers, calls_.GetVersion(), capability_of(device)))
    plan->make(handle, nullptr, kWorkspaceMax);
  return *(plans_[key] = std::move(plan));
}

int DnnLibrary::run(Stream& stream, int device, const AttentionCall& call) {
  AttentionNumbers numbers;
  if (!works() || !numbers_of(call, numbers)) return kUnsupported;
  std::lock_guard hold(mutex_);
  if (!attention_problem_.empty()) return kUnsupported;
  CudnnHandle handle = handle_of(device);
  if (!handle) return kUnsupported;
  AttentionPlan& plan = plan_of(handle, device, numbers);
  if (!plan.works) return kUnsupported;
  size_t used = stream.scratch.used;
  AttentionRun run{*this, stream, call, numbers, plan, handle};
  int code = run.run();
  if (code == kUnsupported || code == kDone) stream.scratch.used = used;
  return code;
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
