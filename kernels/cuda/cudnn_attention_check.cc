// Whether a plan of cuDNN's attention computes what flow's own kernels compute.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/cudnn_attention.hpp"
#include "kernels/cuda/cudnn_device.hpp"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda::dnn {
namespace {

constexpr size_t kBlock = 64;  // rows

// Three digits are enough for a log.
std::string text_of_number(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

double norm_of(double square, double least) { return std::sqrt(std::max(square, least)); }

void take_worse(AttentionVerdict& worst, double apart) {
  // Also of a result that is not finite.
  if (!(apart <= worst.apart))
    worst.apart = std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
}

}  // namespace

AttentionVerdict judge_rows(const std::vector<float>& differences,
                            const std::vector<float>& squares, DType dtype, int64_t width,
                            int64_t terms) {
  AttentionVerdict worst;
  worst.bound = dtype == DType::bf16 ? 1.0 / 8 : 1.0 / 64;
  double least = std::numeric_limits<double>::min();
  if (dtype == DType::f16)
    least = std::ldexp(static_cast<double>(width) * static_cast<double>(terms), -36);
  for (size_t first = 0; first < squares.size(); first += kBlock) {
    size_t end = std::min(first + kBlock, squares.size());
    double difference = 0, square = 0;
    for (size_t i = first; i < end; i++) {
      difference += static_cast<double>(differences[i]) / static_cast<double>(end - first);
      square += static_cast<double>(squares[i]) / static_cast<double>(end - first);
    }
    take_worse(worst, 2 * std::sqrt(difference) / norm_of(square, least));
    for (size_t i = first; i < end; i++)
      take_worse(worst, std::sqrt(static_cast<double>(differences[i])) /
                            norm_of(static_cast<double>(squares[i]),
                                    std::max(least, std::ldexp(square, -8))));
  }
  return worst;
}

AttentionVerdict judge_logarithms(const std::vector<float>& result,
                                  const std::vector<double>& reference) {
  AttentionVerdict worst;
  worst.bound = std::ldexp(1.0, -10);
  for (size_t i = 0; i < reference.size(); i++)
    // Beyond the part of the bound that grows with the reference.
    take_worse(worst, std::fabs(static_cast<double>(result[i]) - reference[i]) -
                          std::ldexp(std::fabs(reference[i]), -14));
  return worst;
}

namespace {

class AttentionCheck {
 public:
  AttentionCheck(const Stream& stream, const AttentionPlan& plan,
                 const std::function<int(const AttentionMemory&)>& run)
      : plan_(plan), n_(plan.numbers()), run_(run), stream_(stream) {
    // Scores whose deviation is 2: some keys weigh much more than others.
    options_ = {n_.causal, 2 / std::sqrt(static_cast<double>(n_.width))};
    first_result_ = n_.is_backward ? kOfDq : kOfOut;
    end_ = n_.is_backward ? kOperands : kOfGrad;
  }

  size_t bytes_needed() {
    stream_.scratch = {};
    lay_out();
    return stream_.scratch.needed;
  }
  AttentionFinding check(char* memory, size_t bytes) {
    stream_.scratch = {memory, bytes, 0, 0};
    lay_out();
    AttentionFinding finding;
    finding.code = check(finding);
    return finding;
  }

 private:
  DType dtype() const { return n_.type == kHalf ? DType::f16 : DType::bf16; }
  bool is_of_keys(int operand) const {
    return operand == kOfK || operand == kOfV || operand == kOfDk || operand == kOfDv;
  }
  Shape shape_of(int operand) const {
    return is_of_keys(operand) ? Shape{n_.batches, n_.groups, n_.keys, n_.width}
                               : Shape{n_.batches, n_.heads, n_.queries, n_.width};
  }
  int64_t rows_of(int operand) const { return shape_of(operand).count() / n_.width; }
  // The number of elements of an operand's memory, with its gaps.
  int64_t elements_of(int operand) const {
    Shape shape = shape_of(operand);
    int64_t last = 0;
    for (int dim = 0; dim < 3; dim++) last += (shape[dim] - 1) * n_.strides[operand][dim];
    return last + n_.width;
  }

  void lay_out() {
    Scratch& room = stream_.scratch;
    int64_t most = 0;
    for (int i = 0; i < end_; i++) {
      View& view = operands_[i];
      view = dense(dtype(), shape_of(i), room.take<uint16_t>(elements_of(i)));
      std::copy_n(n_.strides[i], 3, view.strides);
      memory_.operands[i] = view.data;
      if (i < first_result_) continue;
      references_[i] = dense(dtype(), shape_of(i), room.take<uint16_t>(shape_of(i).count()));
      most = std::max(most, rows_of(i));
    }
    Shape of_rows{n_.batches, n_.heads, n_.queries};
    logarithms_ = dense(DType::f64, of_rows, room.take<double>(n_.rows()));
    memory_.stats = room.take<float>(n_.rows());
    stats_ = dense(DType::f32, of_rows, memory_.stats);
    memory_.delta = room.take<float>(n_.rows());
    memory_.workspace =
        room.take<char>(static_cast<int64_t>(std::max<size_t>(plan_.workspace(), 1)));
    memory_.scale = static_cast<float>(options_.scale);
    row_sums_ = room.take<float>(2 * most);
    used_ = room.used;
    (void)room.take<float>(3 * n_.rows());  // for flow's own gradients
  }

  int check(AttentionFinding& finding) {
    if (int code = make_operands()) return code;
    if (int code = compute_references()) return code;
    if (int code = run(finding)) return code;
    if (finding.status != kSuccess) return kDone;
    if (int code = compare(finding)) return code;
    return finding.problem.empty() ? compare_again(finding) : kDone;
  }
  int make_operands() {
    for (int i = 0; i < end_; i++) {
      if (i >= first_result_ || i == kOfOut) continue;
      View all = dense(dtype(), {elements_of(i)}, operands_[i].data);
      if (int code = normal(stream_, all, Seed(static_cast<uint64_t>(i) + 1), 0, 0, 1)) return code;
    }
    return kDone;
  }
  int compute_references() {
    View* o = operands_;
    View& out = n_.is_backward ? o[kOfOut] : references_[kOfOut];
    stream_.scratch.used = used_;
    if (int code = own_attention(stream_, options_, o[kOfQ], o[kOfK], o[kOfV], out, logarithms_))
      return code;
    if (!n_.is_backward) return kDone;
    stream_.scratch.used = used_;
    return own_attention_backward(stream_, options_, o[kOfQ], o[kOfK], o[kOfV], out, logarithms_,
                                  o[kOfGrad], references_[kOfDq], references_[kOfDk],
                                  references_[kOfDv]);
  }
  // Elements that a plan does not write stay NaN.
  int run(AttentionFinding& finding) {
    Number none = Number::of(std::numeric_limits<double>::quiet_NaN());
    for (int i = first_result_; i < end_; i++)
      if (int code = fill(stream_, operands_[i], none)) return code;
    if (int code =
            n_.is_backward ? copy(stream_, logarithms_, stats_) : fill(stream_, stats_, none))
      return code;
    finding.status = run_(memory_);
    return kDone;
  }

  int compare(AttentionFinding& finding) {
    if (!n_.is_backward) {
      std::vector<double> reference(static_cast<size_t>(n_.rows()));
      first_stats_.resize(reference.size());
      if (int code = read(first_stats_, memory_.stats)) return code;
      if (int code = read(reference, logarithms_.data)) return code;
      AttentionVerdict verdict = judge_logarithms(first_stats_, reference);
      if (!verdict.is_right()) finding.problem = text_of(kLogarithm, verdict);
    }
    for (int i = first_result_; i < end_ && finding.problem.empty(); i++) {
      auto rows = static_cast<size_t>(rows_of(i));
      if (int code =
              row_differences(stream_, operands_[i], references_[i], row_sums_, row_sums_ + rows))
        return code;
      std::vector<float> differences(rows), squares(rows);
      if (int code = read(differences, row_sums_)) return code;
      if (int code = read(squares, row_sums_ + rows)) return code;
      AttentionVerdict verdict = judge_rows(differences, squares, dtype(), n_.width, terms_of(i));
      if (!verdict.is_right()) finding.problem = text_of(name_of(i), verdict);
    }
    return kDone;
  }
  int compare_again(AttentionFinding& finding) {
    for (int i = first_result_; i < end_; i++)
      if (int code = copy(stream_, operands_[i], references_[i])) return code;
    if (int code = run(finding)) return code;
    if (finding.status != kSuccess) return kDone;
    if (!n_.is_backward) {
      std::vector<float> stats(first_stats_.size());
      if (int code = read(stats, memory_.stats)) return code;
      if (std::memcmp(stats.data(), first_stats_.data(), stats.size() * sizeof(float)) != 0)
        finding.problem = std::string("a second computation of ") + kLogarithm + " has other bits";
    }
    for (int i = first_result_; i < end_ && finding.problem.empty(); i++) {
      if (int code = differing_bits(stream_, operands_[i], references_[i], row_sums_)) return code;
      std::vector<float> counts(static_cast<size_t>(rows_of(i)));
      if (int code = read(counts, row_sums_)) return code;
      if (std::any_of(counts.begin(), counts.end(), [](float count) { return count != 0; }))
        finding.problem = std::string("a second computation of ") + name_of(i) + " has other bits";
    }
    return kDone;
  }

  int64_t terms_of(int result) const {
    return is_of_keys(result) ? n_.queries * (n_.heads / n_.groups) : n_.keys;
  }
  template <typename T>
  int read(std::vector<T>& to, const void* from) const {
    return read_back(stream_, to.data(), from, to.size() * sizeof(T));
  }
  static constexpr const char* kLogarithm = "the logarithm of a sum";
  static const char* name_of(int result) {
    return result == kOfDq ? "dq" : result == kOfDk ? "dk" : result == kOfDv ? "dv" : "the result";
  }
  static std::string text_of(const char* what, const AttentionVerdict& verdict) {
    return std::string(what) + " differs from that of flow's own kernel by " +
           text_of_number(verdict.apart) + " where " + text_of_number(verdict.bound) +
           " is expected at most";
  }

  const AttentionPlan& plan_;
  const AttentionNumbers& n_;
  const std::function<int(const AttentionMemory&)>& run_;
  Stream stream_;  // the caller's, with the check's memory
  Attention options_;
  int first_result_ = 0, end_ = 0;
  View operands_[kOperands]{}, references_[kOperands]{};
  View logarithms_{}, stats_{};
  AttentionMemory memory_{};
  float* row_sums_ = nullptr;  // two for each row
  size_t used_ = 0;            // before the memory of flow's own kernels
  std::vector<float> first_stats_;
};

}  // namespace

AttentionFinding check_attention(const Stream& stream, int device, const AttentionPlan& plan,
                                 const std::function<int(const AttentionMemory&)>& run) {
  AttentionCheck check(stream, plan, run);
  size_t bytes = check.bytes_needed();
  LibraryMemory memory(stream, device, bytes);
  if (memory.data()) return check.check(memory.data(), bytes);
  AttentionFinding finding;
  finding.has_memory = false;
  return finding;
}

}  // namespace flow::cuda::dnn
