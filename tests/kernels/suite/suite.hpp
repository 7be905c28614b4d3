// The requirements on every device's kernels: each row of the table on grids of shapes, strides and
// types, against simple sums in double that are written here. A runner (emulator, GPU or CPU) runs
// a row; the suite gives it operands and checks the results.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/shared/types.hpp"
#include "kernels/table.hpp"

namespace flow::suite {

using namespace kernels;

enum class Layout {
  dense,
  shifted,    // dense, but aligned to one element only
  rows,       // dense rows with a gap between them
  gaps,       // every other element
  swapped,    // the last two dimensions swapped in memory
  heads,      // the second and third of four dimensions swapped, as after a projection to all heads
  backwards,  // the last dimension reversed
  broadcast,  // the first dimension of size > 1 repeats one element; for read-only operands
};
const char* name_of(Layout layout);

/// One operand and its memory.
class Array {
 public:
  Array(DType dtype, const Shape& shape, Layout layout = Layout::dense);

  const View& view() const { return view_; }
  DType dtype() const { return view_.dtype; }
  const Shape& shape() const { return view_.shape; }
  int64_t count() const { return view_.count(); }
  /// The value of element `i` in row-major order.
  double at(int64_t i) const;
  int64_t integer_at(int64_t i) const;
  void set(int64_t i, double value);
  void set_integer(int64_t i, int64_t value);
  std::vector<double> values() const;

  char* memory() const { return memory_.get(); }
  size_t bytes() const { return bytes_; }
  /// The element's offset in memory, in bytes.
  size_t place(int64_t i) const { return places_[static_cast<size_t>(i)]; }

 private:
  View view_;
  std::unique_ptr<char[]> memory_;
  size_t bytes_;
  std::vector<size_t> places_;
};

/// The values that an operand must hold afterwards.
struct Expect {
  Array* array;
  std::vector<double> real = {};      // or
  std::vector<int64_t> integer = {};  // exactly
  double slack = 16;     // allowed error, in roundings of the compute type, relative to
  double scale = 0;      // this, or to the value if that is larger
  double roundings = 1;  // to the result's type, of the value
};

/// The slack of an f64 that is a sum computed in the operands' compute type.
inline double of_sums(DType operands, double slack) {
  return operands == DType::f64 ? slack : std::ldexp(slack, 29);
}

using Views = const View*;  // the operands, at the addresses chosen by the runner
using Call = std::function<int(const Kernels&, Stream&, Views)>;

/// Runs a call in the memory of its device.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual const Kernels& table() const = 0;
  /// Returns "" or the error; the operands are as the call left them. `twice`: in two orders, if
  /// the device has an order, and compares the bits.
  virtual std::string run(const std::vector<Array*>& operands, const Call& call) = 0;
  /// The fault word after the last call.
  int64_t fault = 0;
};

/// Operands in host memory, for the emulator's and the CPU's kernels.
class HostRunner : public Runner {
 public:
  HostRunner(const Kernels& table, std::function<void(bool)> reverse)
      : table_(table), reverse_(std::move(reverse)) {}
  const Kernels& table() const override { return table_; }
  std::string run(const std::vector<Array*>& operands, const Call& call) override;

 private:
  const Kernels& table_;
  std::function<void(bool)> reverse_;
};

struct Line {  // of the report
  int64_t checks = 0, misses = 0;
  double worst = 0;        // error, relative to the allowed one
  double worst_error = 0;  // relative to the value's scale
};

class Suite {
 public:
  Suite(Runner& runner, uint64_t seed) : runner(runner), random(seed), seed(seed) {}

  /// Calls a row and compares. `member` is the row; a row that the table lacks is skipped.
  template <typename Member>
  void check(const char* row, Member member, const std::string& what,
             const std::vector<Array*>& operands, const Call& call,
             const std::vector<Expect>& expects) {
    if (runner.table().*member) compare(row, what, operands, call, expects);
  }
  void miss(const std::string& row, const std::string& text);

  double uniform(double low, double high);
  int64_t integer(int64_t low, int64_t high);  // inclusive
  /// Random numbers: reals in [low, high), integers in [-20, 20] or the range of the type.
  void fill(Array& array, double low = -2, double high = 2);
  Array filled(DType dtype, const Shape& shape, Layout layout = Layout::dense, double low = -2,
               double high = 2);

  Runner& runner;
  bool by_library = false;  // NVIDIA's may do products
  /// Checks of one kind, which is a row's operation, type and layout; 0: of all shapes.
  int64_t most_of_a_kind = 0;
  std::mt19937_64 random;
  uint64_t seed;
  std::map<std::string, Line> lines;
  std::vector<std::string> misses;  // the first ones

 private:
  void compare(const std::string& row, const std::string& what, const std::vector<Array*>& operands,
               const Call& call, const std::vector<Expect>& expects);

  std::map<std::string, int64_t> kinds_;  // checks so far
};

constexpr DType kFloats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
constexpr DType kNumbers[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                              DType::i64, DType::i32, DType::u8};
constexpr DType kAllTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                               DType::i64, DType::i32, DType::u8,  DType::boolean};
inline DType compute_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// The families, one file each.
void check_elementwise(Suite&);
void check_reductions(Suite&);
void check_rows(Suite&);
void check_norms(Suite&);
void check_matmuls(Suite&);
/// Products with the epilogues of a layer's sizes.
void check_products(Suite&, int64_t m, int64_t n, int64_t k);
void check_indices(Suite&);
void check_attention(Suite&);
void check_whole_attention(Suite&);  // a part of it
void check_conv_pool(Suite&);
void check_optimizers(Suite&);
void check_choosing(Suite&);
void check_random(Suite&);
void check_finance(Suite&);

/// FLOW_TEST_SEED, or a new one.
uint64_t test_seed();

}  // namespace flow::suite
