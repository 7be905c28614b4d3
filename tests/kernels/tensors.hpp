// Shared by the tests of the table: tensors of every type and layout with guard zones and poison,
// random numbers that differ on each run (FLOW_TEST_SEED repeats a run), every level of the
// instruction set, several threads, and the worst error of each operation.
#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/loops.hpp"
#include "kernels/shared/types.hpp"
#include "kernels/table.hpp"

namespace flow::kernels {

inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("FLOW_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  }();
  return seed;
}

using Generator = std::mt19937_64;
/// Seeded by the test's name, so that a subset of the tests uses the same numbers as all of them.
inline Generator generator(const char* name) {
  return Generator(test_seed() ^ std::hash<std::string>{}(name));
}

/// Records an error; the worst of each operation is printed at the end.
void note_error(const std::string& operation, double error);

inline double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::f32:
      return 0x1p-23;
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    default:
      return 0;
  }
}
inline double least_normal(DType dtype) {
  return dtype == DType::f16 ? 0x1p-14 : dtype == DType::f64 ? 0x1p-1022 : 0x1p-126;
}

enum class Layout : uint8_t { dense, padded, transposed, broadcast, negative, narrowed };
constexpr Layout kLayouts[] = {Layout::dense,     Layout::padded,   Layout::transposed,
                               Layout::broadcast, Layout::negative, Layout::narrowed};
constexpr Layout kOutLayouts[] = {Layout::dense, Layout::padded, Layout::transposed,
                                  Layout::negative, Layout::narrowed};
/// Layouts with dense rows.
constexpr Layout kRowLayouts[] = {Layout::dense, Layout::padded};
constexpr DType kFloats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
constexpr DType kNumbers[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                              DType::i64, DType::i32, DType::u8};

constexpr int64_t kGuard = 64;
constexpr char kPoison = static_cast<char>(0xAB);

class Tensor {
 public:
  Tensor(DType dtype, const Shape& shape, Layout layout = Layout::dense) {
    Shape stored = shape;
    int last = shape.rank - 1;
    if (layout == Layout::padded && last >= 1) stored[last] += 3;
    if (layout == Layout::transposed && last >= 1) std::swap(stored[last], stored[last - 1]);
    if (layout == Layout::broadcast && last >= 0) stored[0] = shape[0] > 0 ? 1 : 0;
    if (layout == Layout::narrowed && last >= 0) stored[last] = 2 * stored[last] + 1;
    auto size = dtype_size(dtype);
    storage_.assign(static_cast<size_t>(stored.count()) * size + 2 * kGuard, kPoison);
    view = kernels::dense(dtype, stored, storage_.data() + kGuard);
    if (layout == Layout::padded && last >= 1) view = narrow(view, last, 1, shape[last]);
    if (layout == Layout::transposed && last >= 1) view = swap_dims(view, last, last - 1);
    if (layout == Layout::broadcast && last >= 0 && shape[0] > 0) {
      view.shape[0] = shape[0];
      view.strides[0] = 0;
    }
    if (layout == Layout::narrowed && last >= 0) view = narrow(view, last, 1, shape[last], 2);
    if (layout == Layout::negative && last >= 0 && shape[last] > 0)
      view = narrow(view, last, shape[last] - 1, shape[last], -1);
    int64_t index[kRankMax] = {};
    int64_t count = view.count();
    at_.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; i++) {
      int64_t offset = 0;
      for (int dim = 0; dim < shape.rank; dim++) offset += index[dim] * view.strides[dim];
      at_.push_back(offset * static_cast<int64_t>(size));
      for (int dim = last; dim >= 0 && ++index[dim] == shape[dim]; dim--) index[dim] = 0;
    }
  }
  Tensor(Tensor&& other) = default;
  Tensor(const Tensor&) = delete;

  int64_t count() const { return static_cast<int64_t>(at_.size()); }
  double get(int64_t i) const {
    return visit(view.dtype, [&](auto type) {
      return convert<double>(*reinterpret_cast<const decltype(type)*>(place(i)));
    });
  }
  int64_t whole(int64_t i) const {
    return visit(view.dtype, [&](auto type) {
      return convert<int64_t>(*reinterpret_cast<const decltype(type)*>(place(i)));
    });
  }
  void set(int64_t i, double value) {
    visit(view.dtype, [&](auto type) {
      *reinterpret_cast<decltype(type)*>(place(i)) = convert<decltype(type)>(value);
    });
  }
  void set_whole(int64_t i, int64_t value) {
    visit(view.dtype, [&](auto type) {
      *reinterpret_cast<decltype(type)*>(place(i)) = convert<decltype(type)>(value);
    });
  }
  Tensor& fill(Generator& random, double low = -2, double high = 2) {
    std::uniform_real_distribution<double> draw(low, high);
    for (int64_t i = 0; i < count(); i++)
      set(i, is_float(view.dtype) ? draw(random) : std::floor(draw(random)));
    return *this;
  }
  Tensor& fill(const std::function<double(int64_t)>& f) {
    for (int64_t i = 0; i < count(); i++) set(i, f(i));
    return *this;
  }
  std::vector<double> values() const {
    std::vector<double> out;
    for (int64_t i = 0; i < count(); i++) out.push_back(get(i));
    return out;
  }
  /// Fills the memory with NaN, or with bytes of 0xAB.
  void poison() {
    for (int64_t i = 0; i < count(); i++) {
      if (is_float(view.dtype)) {
        set(i, NAN);
      } else {
        std::memset(place(i), kPoison, dtype_size(view.dtype));
      }
    }
  }
  /// Whether only the bytes of elements were written.
  bool is_guarded() const {
    std::vector<char> rest = storage_;
    for (int64_t offset : at_) {
      char* at = rest.data() + (view.data - storage_.data()) + offset;
      std::memset(at, kPoison, dtype_size(view.dtype));
    }
    for (char each : rest)
      if (each != kPoison) return false;
    return true;
  }
  const std::vector<char>& bytes() const { return storage_; }

  View view;

 private:
  char* place(int64_t i) { return view.data + at_[static_cast<size_t>(i)]; }
  const char* place(int64_t i) const { return view.data + at_[static_cast<size_t>(i)]; }
  std::vector<char> storage_;
  std::vector<int64_t> at_;
};

inline Tensor random_tensor(Generator& random, DType dtype, const Shape& shape,
                            Layout layout = Layout::dense, double low = -2, double high = 2) {
  Tensor made(dtype, shape, layout);
  if (!is_float(dtype) && dtype != DType::boolean && low == -2)
    low = dtype == DType::u8 ? 0 : -9, high = 10;
  if (dtype == DType::boolean) low = 0, high = 2;
  made.fill(random, low, high);
  return made;
}
/// The same values as doubles.
inline Tensor as_double(const Tensor& from) {
  Tensor made(DType::f64, from.view.shape);
  for (int64_t i = 0; i < from.count(); i++) made.set(i, from.get(i));
  return made;
}

/// Runs a row as callers do: with too little scratch first, then with exactly enough.
class Runner {
 public:
  explicit Runner(int threads) { stream.threads = threads; }
  template <typename F>
  int operator()(F f) {
    stream.scratch = {};
    int code = f(stream);
    if (code != kNeedsScratch) return code;
    size_t needed = stream.scratch.needed;
    std::vector<char> room(needed + 256 + 2 * kGuard, kPoison);
    auto start = (reinterpret_cast<uintptr_t>(room.data()) + kGuard + 255) / 256 * 256;
    size_t skip = start - reinterpret_cast<uintptr_t>(room.data());
    stream.scratch = {room.data() + skip, needed, 0, 0};
    code = f(stream);
    for (size_t i = 0; i < room.size(); i++)
      if ((i < skip || i >= skip + needed) && room[i] != kPoison) return -99;
    stream.scratch = {};
    return code;
  }
  Stream stream;
};

inline const Kernels& table() { return cpu_kernels(); }

/// Calls f(runner) for each level of the instruction set that this CPU has, with 1 and 3 threads.
template <typename F>
void for_setups(F f) {
  INFO("FLOW_TEST_SEED=" << test_seed());
  for (const char* level : {"base", "v3", "v4"}) {
    const cpu::Loops* loops = cpu::loops_of_level(level);
    if (loops == nullptr) continue;
    cpu::use_loops(loops);
    for (int threads : {1, 3}) {
      INFO("level " << level << ", threads " << threads);
      Runner runner(threads);
      f(runner);
    }
  }
  cpu::use_loops(nullptr);
}

/// The error of one number in units of the type's epsilon, relative to the larger of the expected
/// value and `scale`.
inline double error_of(DType dtype, double actual, double expected, double scale = 0) {
  if (std::isnan(expected) || std::isnan(actual))
    return std::isnan(expected) == std::isnan(actual) ? 0 : 1e30;
  if (std::isinf(expected) || std::isinf(actual)) {
    if (actual == expected) return 0;
    double largest = dtype == DType::f16 ? 65504 : dtype == DType::f64 ? 1.7e308 : 3.3e38;
    return std::fabs(actual) >= largest && std::fabs(expected) >= largest ? 0 : 1e30;
  }
  if (!is_float(dtype)) return actual == expected ? 0 : 1e30;
  double size = std::max({std::fabs(expected), scale, least_normal(dtype)});
  return std::fabs(actual - expected) / (size * epsilon_of(dtype));
}

/// Checks every element of `out` against `expected(i)`, within `tolerance` epsilons of its type.
inline void check(const std::string& operation, const Tensor& out,
                  const std::function<double(int64_t)>& expected, double tolerance,
                  const std::function<double(int64_t)>& scale = nullptr) {
  double worst = 0;
  int64_t where = -1;
  for (int64_t i = 0; i < out.count(); i++) {
    double error = error_of(out.view.dtype, out.get(i), expected(i), scale ? scale(i) : 0);
    if (error > worst || where < 0) {
      worst = std::max(error, worst);
      where = i;
    }
  }
  if (worst < 1e29) note_error(operation, worst);
  if (worst > tolerance || !out.is_guarded()) {
    INFO(operation << " " << dtype_name(out.view.dtype) << " " << text_of(out.view.shape) << " at "
                   << where << ": " << (where >= 0 ? out.get(where) : 0) << ", expected "
                   << (where >= 0 ? expected(where) : 0) << ", error " << worst << " eps");
    CHECK(worst <= tolerance);
    CHECK(out.is_guarded());
  }
  SUCCEED();
}

}  // namespace flow::kernels
