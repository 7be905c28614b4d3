// Conversion between views of any type and strides and contiguous runs of the compute type.
#pragma once
#include <array>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/loops.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/shared/types.hpp"
#include "kernels/table.hpp"

namespace flow::cpu {

using namespace kernels;

/// The rows of this device's table; each file adds its own.
void add_elementwise_rows(Kernels& table);
void add_fused_rows(Kernels& table);
void add_reduction_rows(Kernels& table);
void add_row_rows(Kernels& table);
void add_norm_rows(Kernels& table);
void add_matmul_rows(Kernels& table);
void add_index_rows(Kernels& table);
void add_attention_rows(Kernels& table);
void add_conv_pool_rows(Kernels& table);
void add_convolution_rows(Kernels& table);
void add_optimizer_rows(Kernels& table);
void add_topk_sampling_rows(Kernels& table);
void add_random_rows(Kernels& table);
void add_finance_rows(Kernels& table);

/// Minimum number of elements per thread.
constexpr int64_t kGrainCheap = 32768, kGrainCostly = 4096;
/// Elements converted at a time; they stay in the L1 cache.
constexpr int64_t kChunk = 512;

ArithmeticType kind_of(DType dtype);  // the compute type
int size_index(DType dtype);          // in Loops' rows by size
bool is_small(DType dtype);           // f16 and bf16
size_t size_of_kind(ArithmeticType kind);
/// True if a write of this size would evict everything else from the last-level cache.
bool is_beyond_caches(size_t bytes);

/// `count` elements in their compute type: in place, or converted into `buffer`.
const void* load_converted(DType dtype, const char* at, int64_t stride, int64_t count,
                           void* buffer);
/// The reverse, from the compute type.
void store_converted(DType dtype, const void* from, char* at, int64_t stride, int64_t count);
/// Dense bytes with non-temporal stores.
void stream_out(const void* from, char* to, size_t bytes);

/// A number as a view that repeats it.
struct Scalar {
  alignas(8) char storage[8] = {};
  View view;
  Scalar(Number number, ArithmeticType kind, const Shape& shape, bool saturate = false);
};

/// A reference to a callable.
class RunCall {
 public:
  /// Not for a RunCall itself: that is copied, or the copy would refer to a parameter that is gone.
  template <typename F>
  requires(!std::is_same_v<std::remove_const_t<F>, RunCall>) RunCall(F& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, const void* const* in, void* out, int64_t count, int64_t position) {
          (*static_cast<std::remove_reference_t<F>*>(object))(in, out, count, position);
        }) {}
  void operator()(const void* const* in, void* out, int64_t count, int64_t position) const {
    call_(object_, in, out, count, position);
  }

 private:
  void* object_;
  void (*call_)(void*, const void* const*, void*, int64_t, int64_t);
};

constexpr int kInputsMax = kFusedInputs;
/// Whether elements are converted to the compute type, or moved unchanged.
enum class As : uint8_t { numbers, bytes };

void strided_loop(const Stream& stream, const View* const* in, int inputs, const View& out,
                  int64_t grain, As as, RunCall f);

/// Calls f(in, out, count, position) for runs of all elements, on several threads: `in` and `out`
/// are dense and of the compute type, `position` is the row-major index of the first.
template <size_t n, typename F>
int for_elements(const Stream& stream, const std::array<const View*, n>& in, const View& out,
                 int64_t grain, F f, As as = As::numbers) {
  static_assert(n <= kInputsMax);
  strided_loop(stream, in.data(), static_cast<int>(n), out, grain, as, RunCall(f));
  return kDone;
}

/// Row `row` (row-major) of the dimensions before the last `inner`.
char* row_at(const View& view, int64_t row, int inner = 1);
/// Number of rows of the dimensions before the last `inner`.
int64_t rows_of(const View& view, int inner = 1);

/// to = from, cast; the table's function `copy`.
int copy_elements(Stream& stream, const View& from, const View& to);

}  // namespace flow::cpu
