// Elements on the device: packs of them that are loaded and stored at once, and their compute type.
#pragma once
#include "kernels/cuda/launch.cuh"
#include "kernels/shared/scalar.hpp"

namespace flow::cuda {

/// What one instruction loads or stores. The compiler splits the store of a struct, uint4 included,
/// into those of its members, unless it is written as the instruction (__stwb).
#ifdef FLOW_EMULATE
struct alignas(16) Word16 {
  uint64_t low, high;
};
#else
using Word16 = uint4;
#endif
template <size_t bytes>
struct WordOf {
  using type = Word16;
};
template <>
struct WordOf<8> {
  using type = uint64_t;
};
template <>
struct WordOf<4> {
  using type = uint32_t;
};
template <>
struct WordOf<2> {
  using type = uint16_t;
};
template <>
struct WordOf<1> {
  using type = uint8_t;
};
/// `width` contiguous elements, aligned as one, in as few words as possible.
template <typename T, int width>
struct Words {
  using Word = typename WordOf<sizeof(T) * width>::type;
  static constexpr int kCount = static_cast<int>(sizeof(T) * width / sizeof(Word));
  Word at[kCount];
};
/// As many elements as fit in 16 bytes.
template <typename T>
constexpr int kPack = static_cast<int>(16 / sizeof(T));

template <int width, typename T>
FLOW_DEVICE Words<T, width> load_words(const T* from) {
  Words<T, width> words;
#ifdef FLOW_EMULATE  // the host's compiler assumes that a T and a Word do not alias
  __builtin_memcpy(&words, __builtin_assume_aligned(from, sizeof words), sizeof words);
#else
  for (int j = 0; j < words.kCount; j++)
    words.at[j] = reinterpret_cast<const typename Words<T, width>::Word*>(from)[j];
#endif
  return words;
}
template <int width, typename T>
FLOW_DEVICE void load(const T* from, T (&to)[width]) {
  Words<T, width> words = load_words<width>(from);
  __builtin_memcpy(to, &words, sizeof words);
}
/// 16 bytes are stored to the device's memory, not to shared memory.
template <int width, typename T>
FLOW_DEVICE void store(T* to, const T (&from)[width]) {
  Words<T, width> words;
  __builtin_memcpy(&words, from, sizeof words);
#ifdef FLOW_EMULATE
  __builtin_memcpy(__builtin_assume_aligned(to, sizeof words), &words, sizeof words);
#else
  for (int j = 0; j < words.kCount; j++) {
    auto* word = reinterpret_cast<typename Words<T, width>::Word*>(to) + j;
    if constexpr (sizeof *word == 16)
      __stwb(word, words.at[j]);
    else
      *word = words.at[j];
  }
#endif
}

/// Whether pairs of elements have an instruction of their own for conversions to and from C.
template <typename T, int width, typename C>
constexpr bool converts_pairs =
#ifdef FLOW_EMULATE
    false;
#else
    is_small_float<T>&& std::is_same_v<C, float>&& width % 2 == 0;
#endif

/// Converts to the compute type.
template <typename T, int width, typename C>
FLOW_DEVICE void widen(const T (&from)[width], C (&to)[width]) {
  if constexpr (converts_pairs<T, width, C>) {
#ifndef FLOW_EMULATE
    uint32_t pairs[width / 2];
    __builtin_memcpy(pairs, from, sizeof pairs);
    for (int j = 0; j < width / 2; j++) {
      if constexpr (std::is_same_v<T, Brain>) {
        to[2 * j] = __uint_as_float(pairs[j] << 16);
        to[2 * j + 1] = __uint_as_float(pairs[j] & 0xffff0000u);
      } else {
        asm("cvt.f32.f16 %0, %1;" : "=f"(to[2 * j]) : "h"(static_cast<uint16_t>(pairs[j])));
        asm("cvt.f32.f16 %0, %1;"
            : "=f"(to[2 * j + 1])
            : "h"(static_cast<uint16_t>(pairs[j] >> 16)));
      }
    }
#endif
  } else {
    for (int j = 0; j < width; j++) to[j] = convert<C>(from[j]);
  }
}
/// Converts from the compute type. Every NaN of a pair becomes the same one.
template <typename T, int width, typename C>
FLOW_DEVICE void narrow(const C (&from)[width], T (&to)[width]) {
  if constexpr (converts_pairs<T, width, C>) {
#ifndef FLOW_EMULATE
    uint32_t pairs[width / 2];
    for (int j = 0; j < width / 2; j++) {
      if constexpr (std::is_same_v<T, Brain>)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
            : "=r"(pairs[j])
            : "f"(from[2 * j + 1]), "f"(from[2 * j]));
      else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;"
            : "=r"(pairs[j])
            : "f"(from[2 * j + 1]), "f"(from[2 * j]));
    }
    __builtin_memcpy(to, pairs, sizeof pairs);
#endif
  } else {
    for (int j = 0; j < width; j++) to[j] = convert<T>(from[j]);
  }
}
template <int width, typename T, typename C>
FLOW_DEVICE void load_as(const T* from, C (&to)[width]) {
  T stored[width];
  load<width>(from, stored);
  widen(stored, to);
}
template <int width, typename T, typename C>
FLOW_DEVICE void store_as(T* to, const C (&from)[width]) {
  T stored[width];
  narrow(from, stored);
  store<width>(to, stored);
}

/// A number known to the compiler, passed as a value.
template <auto number>
struct Constant {
  static constexpr auto value = number;
};

/// Calls f(Constant<op>) for the current operation: one branch that all threads take alike.
template <int from = 0, typename F>
FLOW_DEVICE void with_unary(Unary op, F f) {
  if constexpr (from < kUnaryCount) {
    if (static_cast<int>(op) == from) return f(Constant<static_cast<Unary>(from)>{});
    with_unary<from + 1>(op, f);
  }
}
template <int from = 0, typename F>
FLOW_DEVICE void with_binary(Binary op, F f) {
  if constexpr (from < kBinaryCount) {
    if (static_cast<int>(op) == from) return f(Constant<static_cast<Binary>(from)>{});
    with_binary<from + 1>(op, f);
  }
}
template <int from = 0, typename F>
FLOW_DEVICE void with_compare(Compare op, F f) {
  if constexpr (from < kCompareCount) {
    if (static_cast<int>(op) == from) return f(Constant<static_cast<Compare>(from)>{});
    with_compare<from + 1>(op, f);
  }
}

/// Iteration over n operands, in packs if their layouts allow it. The last one is the result.
template <int n>
struct ElementWalk {
  IndexMath<n> index_math;
  char* data[n];
  bool repeats[n];      // one element for all of a pack
  int64_t single, all;  // elements from `single` to `all` are processed one by one
};

/// The position of one operand in one step of the iteration.
struct ElementPosition {
  char* data;
  int64_t offset;
  bool repeats;

  template <int width, typename T>
  FLOW_DEVICE void read(T (&to)[width]) const {
    const T* from = reinterpret_cast<const T*>(data) + offset;
    if (width == 1 || !repeats) return load<width>(from, to);
    T same = *from;
    for (int j = 0; j < width; j++) to[j] = same;
  }
  template <typename T, int width, typename C>
  FLOW_DEVICE void read_as(C (&to)[width]) const {
    T stored[width];
    read(stored);
    widen(stored, to);
  }
  template <int width, typename T>
  FLOW_DEVICE void write(const T (&from)[width]) const {
    store<width>(reinterpret_cast<T*>(data) + offset, from);
  }
  template <typename T, int width, typename C>
  FLOW_DEVICE void write_as(const C (&from)[width]) const {
    store_as<width>(reinterpret_cast<T*>(data) + offset, from);
  }
};

/// F::run<width>(spots, number) processes elements number … number + width - 1 in row-major order.
template <int width, typename F, int n>
__global__ void __launch_bounds__(kBlockThreads) each_kernel(F f, ElementWalk<n> each) {
  int64_t step = threads_of_grid();
  int64_t offset[n];
  ElementPosition spots[n];
  for (int k = 0; k < n; k++) spots[k] = {each.data[k], 0, each.repeats[k]};
  for (int64_t i = thread_of_grid(); i < each.index_math.count; i += step) {
    each.index_math.at(i, offset);
    for (int k = 0; k < n; k++) spots[k].offset = offset[k];
    f.template run<width>(spots, i * width);
  }
  if constexpr (width > 1) {
    for (int64_t i = each.single + thread_of_grid(); i < each.all; i += step) {
      for (int k = 0; k < n; k++) spots[k].offset = each.repeats[k] ? 0 : i;
      f.template run<1>(spots, i);
    }
  }
}

/// Launches F over the views, in packs of `width` if all of them allow it.
template <int width, typename F, int n>
int launch_each(Stream& stream, F f, const View* const (&views)[n]) {
  const Shape& shape = views[n - 1]->shape;
  if (shape.count() == 0) return kDone;
  const int64_t* strides[n];
  size_t sizes[n];
  ElementWalk<n> each;
  for (int k = 0; k < n; k++) {
    strides[k] = views[k]->strides;
    sizes[k] = dtype_size(views[k]->dtype);
    each.data[k] = views[k]->data;
  }
  each.index_math = index_math_over<n>(shape, strides);
  int64_t count = each.index_math.count;
  for (int k = 0; k < n; k++) each.repeats[k] = each.index_math.strides[k][0] == 0;
  if (width > 1 && index_packs(each.index_math, width, each.data, sizes)) {
    each.single = each.index_math.rank == 1 ? each.index_math.count * width : count;
    each.all = count;
    return launch(stream, each_kernel<width, F, n>, grid_of(blocks_for(each.index_math.count)),
                  kBlockThreads, 0, f, each);
  }
  each.single = each.all = 0;
  return launch(stream, each_kernel<1, F, n>, grid_of(blocks_for(count)), kBlockThreads, 0, f,
                each);
}

}  // namespace flow::cuda
