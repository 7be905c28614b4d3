#include "tests/gpu/gpu_large.hpp"

#include <cmath>
#include <cstring>
#include <string>

#include "kernels/shared/types.hpp"
#include "tests/gpu/gpu_bench.hpp"

namespace flow::gpu {
namespace {

using namespace kernels;

constexpr size_t kScratch = size_t{256} << 20, kHostScratch = size_t{4} << 20;
constexpr float kSoftmaxError = 1.0F / 64;  // relative: a rounding to bf16, of both

/// Rows that are compared: the ends, and both sides of the element 2^31.
std::vector<int64_t> rows_of(int64_t rows) {
  const int64_t wrap = (int64_t{1} << 31) / kLargeColumns;
  std::vector<int64_t> chosen = {0, rows / 2};
  if (wrap < rows) chosen.insert(chosen.end(), {wrap - 1, wrap});
  if (chosen.back() != rows - 1) chosen.push_back(rows - 1);
  return chosen;
}

class Large {
 public:
  Large(void* native, int64_t elements)
      : bench_(native, kScratch), rows_(elements / kLargeColumns), chosen_(rows_of(rows_)) {}

  int check() {
    Shape shape{rows_, kLargeColumns};
    View x = bench_.random(DType::bf16, shape), y = bench_.empty(DType::bf16, shape);
    for (int64_t row : chosen_) read_.push_back(bench_.bytes_of(row_of(x, row)));
    run("copy", y, bench_.table.copy(bench_.stream, x, y),
        [](Stream& stream, const View& in, const View& out) {
          return cpu_kernels().copy(stream, in, out);
        });
    run("add", y, bench_.table.binary(bench_.stream, Binary::add, x, x, y),
        [](Stream& stream, const View& in, const View& out) {
          return cpu_kernels().binary(stream, Binary::add, in, in, out);
        });
    run("softmax", y, bench_.table.softmax(bench_.stream, false, x, y),
        [](Stream& stream, const View& in, const View& out) {
          return cpu_kernels().softmax(stream, false, in, out);
        });
    transposed(x, y);
    gathered(x);
    sum(y);
    bench_.clear();
    cast();
    return wrong_;
  }

 private:
  static View row_of(const View& view, int64_t row) { return select(view, 0, row); }

  void report(const char* name, bool is_right) {
    fmt::print("large {:<20} {}\n", name, is_right ? "ok" : "MISS");
    wrong_ += is_right ? 0 : 1;
  }

  static bool are_near(const std::vector<char>& one, const std::vector<char>& other) {
    if (one == other) return true;
    for (size_t at = 0; at < one.size(); at += sizeof(Brain)) {
      Brain a{}, b{};
      std::memcpy(&a, one.data() + at, sizeof a);
      std::memcpy(&b, other.data() + at, sizeof b);
      if (!(std::fabs(a.to_float() - b.to_float()) <= kSoftmaxError * std::fabs(b.to_float())))
        return false;
    }
    return true;
  }

  /// `on_cpu` computes a row of `out` from the same row of the first operand.
  template <typename OnCpu>
  void run(const std::string& name, const View& out, int code, OnCpu on_cpu) {
    bench_.must_be(code);
    bool is_right = true;
    for (size_t i = 0; i < chosen_.size(); i++) {
      std::vector<char> expected(kLargeColumns * dtype_size(out.dtype));
      View in = dense(DType::bf16, Shape{1, kLargeColumns}, read_[i].data());
      View to = dense(out.dtype, Shape{1, kLargeColumns}, expected.data());
      std::vector<char> scratch(kHostScratch);
      Stream stream;
      stream.scratch = {scratch.data(), scratch.size(), 0, 0};
      bench_.must_be(on_cpu(stream, in, to));
      std::vector<char> row = bench_.bytes_of(row_of(out, chosen_[i]));
      is_right &= name == "softmax" ? are_near(row, expected) : row == expected;
    }
    report(name.c_str(), is_right);
  }

  void transposed(const View& x, const View& room) {
    View y = dense(DType::bf16, Shape{kLargeColumns, rows_}, room.data);
    bench_.must_be(bench_.table.copy(bench_.stream, swap_dims(x, 0, 1), y));
    bool is_right = true;
    for (size_t i = 0; i < chosen_.size(); i++)
      for (int64_t column : {int64_t{0}, int64_t{1}, kLargeColumns / 2, kLargeColumns - 1}) {
        View element = narrow(select(y, 0, column), 0, chosen_[i], 1);
        const char* expected = read_[i].data() + column * static_cast<int64_t>(sizeof(Brain));
        is_right &= std::memcmp(bench_.bytes_of(element).data(), expected, sizeof(Brain)) == 0;
      }
    report("transposition", is_right);
  }

  void gathered(const View& x) {
    int64_t count = static_cast<int64_t>(chosen_.size());
    View index = bench_.empty(DType::i64, Shape{count});
    View out = bench_.empty(DType::bf16, Shape{count, kLargeColumns});
    must(cuda::copy_to_device(index.data, reinterpret_cast<const char*>(chosen_.data()),
                              index.bytes(), bench_.stream.native));
    bench_.must_be(bench_.table.gather_rows(bench_.stream, x, index, 0, out));
    bool is_right = true;
    for (size_t i = 0; i < chosen_.size(); i++)
      is_right &= bench_.bytes_of(row_of(out, static_cast<int64_t>(i))) == read_[i];
    report("gather_rows", is_right);
  }

  /// The sum of ones in a few rows and zeros elsewhere: exact in bf16.
  void sum(const View& room) {
    View y = dense(DType::bf16, Shape{rows_, kLargeColumns}, room.data);
    View one = bench_.empty(DType::bf16, Shape{});
    bench_.must_be(bench_.table.fill(bench_.stream, y, Number::of(0.0)));
    for (int64_t row : chosen_)
      bench_.must_be(bench_.table.fill(bench_.stream, row_of(y, row), Number::of(1.0)));
    bench_.must_be(bench_.table.reduce(bench_.stream, Reduce::sum,
                                       dense(DType::bf16, Shape{rows_ * kLargeColumns}, y.data), 0,
                                       one));
    Brain result{};
    std::memcpy(&result, bench_.bytes_of(one).data(), sizeof result);
    auto expected = static_cast<float>(kLargeColumns * static_cast<int64_t>(chosen_.size()));
    report("sum", result.to_float() == expected);
  }

  /// To f32, which needs most memory: the operands before have been freed.
  void cast() {
    Shape shape{rows_, kLargeColumns};
    View x = bench_.random(DType::bf16, shape), wide = bench_.empty(DType::f32, shape);
    run("cast to f32", wide, bench_.table.copy(bench_.stream, x, wide),
        [](Stream& stream, const View& in, const View& out) {
          return cpu_kernels().copy(stream, in, out);
        });
    bench_.clear();
  }

  Bench bench_;
  const int64_t rows_;
  const std::vector<int64_t> chosen_;
  std::vector<std::vector<char>> read_;  // the chosen rows of the operand
  int wrong_ = 0;
};

}  // namespace

int check_large(void* stream, int64_t elements) { return Large(stream, elements).check(); }

}  // namespace flow::gpu
