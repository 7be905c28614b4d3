// Loops over views of any type and strides, in contiguous runs of the compute type.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/elementwise.hpp"
#include "kernels/shared/compare_number.hpp"

namespace flow::cpu {
namespace {

constexpr int kViewsMax = kInputsMax + 1;

// The dimensions of several views of one shape, innermost first, merged where all of them allow it.
struct MergedDims {
  int rank = 0, views = 0;
  int64_t sizes[kRankMax] = {};
  int64_t strides[kViewsMax][kRankMax] = {};  // in bytes
};

MergedDims collapse(const View* const* views, int count) {
  MergedDims all;
  all.views = count;
  for (int dim = views[0]->rank() - 1; dim >= 0; dim--) {
    int64_t size = views[0]->shape[dim];
    if (size == 1) continue;
    int64_t strides[kViewsMax];
    bool merge = all.rank > 0;
    for (int i = 0; i < count; i++) {
      strides[i] = views[i]->strides[dim] * static_cast<int64_t>(dtype_size(views[i]->dtype));
      merge = merge && strides[i] == all.strides[i][all.rank - 1] * all.sizes[all.rank - 1];
    }
    if (merge) {
      all.sizes[all.rank - 1] *= size;
      continue;
    }
    for (int i = 0; i < count; i++) all.strides[i][all.rank] = strides[i];
    all.sizes[all.rank++] = size;
  }
  if (all.rank == 0) {
    for (int i = 0; i < count; i++)
      all.strides[i][0] = static_cast<int64_t>(dtype_size(views[i]->dtype));
    all.sizes[all.rank++] = 1;
  }
  return all;
}

struct Buffers {
  alignas(64) char of[kViewsMax][kChunk * 8];
};

// One view during the loop: the address of its next chunk.
struct LoopOperand {
  DType dtype = DType::f32;
  size_t size = 4;
  bool converts = false;
  const char* filled_from = nullptr;  // a repeated element: the buffer's current content
  int64_t filled = 0;
};

class StridedLoop {
 public:
  StridedLoop(const View* const* views, int count, As as, RunCall f)
      : all_(collapse(views, count)), views_(views), f_(f), as_(as), count_(count) {
    const View& out = *views[count - 1];
    bool apart = true;
    for (int i = 0; i + 1 < count; i++) apart = apart && views[i]->data != out.data;
    streams_ = apart && is_beyond_caches(out.bytes());
  }

  void run_range(int64_t first, int64_t last) const {
    Buffers buffers;
    LoopOperand operands[kViewsMax];
    const char* at[kViewsMax];
    for (int i = 0; i < count_; i++) {
      DType dtype = views_[i]->dtype;
      operands[i].dtype = dtype;
      operands[i].size = dtype_size(dtype);
      operands[i].converts = as_ == As::numbers && is_small(dtype);
      at[i] = views_[i]->data;
    }
    int64_t index[kRankMax] = {};
    int64_t rest = first;
    for (int dim = 0; dim < all_.rank; dim++) {
      index[dim] = rest % all_.sizes[dim];
      rest /= all_.sizes[dim];
      for (int i = 0; i < count_; i++) at[i] += all_.strides[i][dim] * index[dim];
    }
    for (int64_t position = first; position < last;) {
      int64_t length = std::min(all_.sizes[0] - index[0], last - position);
      run(at, operands, buffers, length, position);
      position += length;
      for (int i = 0; i < count_; i++) at[i] -= all_.strides[i][0] * index[0];
      index[0] = 0;
      for (int dim = 1; dim < all_.rank; dim++) {
        for (int i = 0; i < count_; i++) at[i] += all_.strides[i][dim];
        if (++index[dim] < all_.sizes[dim]) break;
        for (int i = 0; i < count_; i++) at[i] -= all_.strides[i][dim] * all_.sizes[dim];
        index[dim] = 0;
      }
    }
  }

 private:
  void run(const char* const* starts, LoopOperand* operands, Buffers& buffers, int64_t length,
           int64_t position) const {
    const Loops& use = loops();
    int last = count_ - 1;
    bool direct[kViewsMax], all_direct = true;
    for (int i = 0; i < count_; i++) {
      direct[i] = !operands[i].converts &&
                  (length == 1 || all_.strides[i][0] == static_cast<int64_t>(operands[i].size));
      all_direct = all_direct && direct[i];
    }
    bool stream = streams_ && all_.strides[last][0] == static_cast<int64_t>(operands[last].size);
    const char* at[kViewsMax];
    std::copy(starts, starts + count_, at);
    for (int64_t done = 0; done < length;) {
      int64_t chunk = all_direct && !stream ? length : std::min(length - done, kChunk);
      bool past = false;
      if (stream) {  // up to a cache line boundary first
        size_t off = (64 - reinterpret_cast<uintptr_t>(at[last]) % 64) % 64;
        if (off != 0) {
          chunk = std::min<int64_t>(chunk, static_cast<int64_t>(off / operands[last].size));
        } else {
          past = true;
        }
      }
      const void* in[kInputsMax] = {};
      for (int i = 0; i < last; i++) {
        int64_t stride = all_.strides[i][0];
        if (direct[i]) {
          in[i] = at[i];
        } else if (stride == 0) {
          if (operands[i].filled_from != at[i] || operands[i].filled < chunk) {
            fill(operands[i], at[i], buffers.of[i], std::min(length, kChunk));
          }
          in[i] = buffers.of[i];
        } else if (as_ == As::bytes) {
          use.gather[size_index(operands[i].dtype)](
              at[i], stride / static_cast<int64_t>(operands[i].size), buffers.of[i], chunk);
          in[i] = buffers.of[i];
        } else {
          in[i] =
              load_converted(operands[i].dtype, at[i],
                             stride / static_cast<int64_t>(operands[i].size), chunk, buffers.of[i]);
        }
        at[i] += stride * chunk;
      }
      char* out = const_cast<char*>(at[last]);
      int64_t stride = all_.strides[last][0] / static_cast<int64_t>(operands[last].size);
      if (past) {
        f_(in, buffers.of[last], chunk, position + done);
        if (operands[last].converts) {
          alignas(64) char rounded[kChunk * 2];
          store_converted(operands[last].dtype, buffers.of[last], rounded, 1, chunk);
          use.stream(rounded, out, static_cast<size_t>(chunk) * operands[last].size);
        } else {
          use.stream(buffers.of[last], out, static_cast<size_t>(chunk) * operands[last].size);
        }
      } else if (direct[last]) {
        f_(in, out, chunk, position + done);
      } else {
        f_(in, buffers.of[last], chunk, position + done);
        if (operands[last].converts) {
          store_converted(operands[last].dtype, buffers.of[last], out, stride, chunk);
        } else {
          use.scatter[size_index(operands[last].dtype)](buffers.of[last], out, stride, chunk);
        }
      }
      at[last] += all_.strides[last][0] * chunk;
      done += chunk;
    }
  }

  void fill(LoopOperand& operand, const char* at, char* buffer, int64_t count) const {
    alignas(8) char one[8];
    const void* value = at;
    if (operand.converts) value = load_converted(operand.dtype, at, 1, 1, one);
    int size = operand.converts ? 2 : size_index(operand.dtype);
    loops().fill[size](value, buffer, count);
    operand.filled_from = at;
    operand.filled = count;
  }

  MergedDims all_;
  const View* const* views_;
  RunCall f_;
  As as_;
  int count_;
  bool streams_ = false;
};

}  // namespace

ArithmeticType kind_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return kF64;
    case DType::i64:
      return kI64;
    case DType::i32:
      return kI32;
    case DType::u8:
    case DType::boolean:
      return kU8;
    default:
      return kF32;
  }
}

int size_index(DType dtype) {
  size_t size = dtype_size(dtype);
  return size == 8 ? 3 : size == 4 ? 2 : size == 2 ? 1 : 0;
}

bool is_small(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

size_t size_of_kind(ArithmeticType kind) {
  return kind == kF64 || kind == kI64 ? 8 : kind == kU8 ? 1 : 4;
}

bool is_beyond_caches(size_t bytes) {
  static const size_t last_cache = [] {
    long size = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    return size > 0 ? static_cast<size_t>(size) : size_t{32} << 20;
  }();
  return bytes > last_cache;
}

const void* load_converted(DType dtype, const char* at, int64_t stride, int64_t count,
                           void* buffer) {
  const Loops& use = loops();
  if (!is_small(dtype)) {
    if (stride == 1 || count <= 1) return at;
    use.gather[size_index(dtype)](at, stride, buffer, count);
    return buffer;
  }
  auto widen = dtype == DType::f16 ? use.widen_f16 : use.widen_bf16;
  if (stride == 1 || count <= 1) {
    widen(reinterpret_cast<const uint16_t*>(at), static_cast<float*>(buffer), count);
    return buffer;
  }
  uint16_t small[kChunk];
  for (int64_t done = 0; done < count; done += kChunk) {
    int64_t chunk = std::min(kChunk, count - done);
    use.gather[1](at + done * stride * 2, stride, small, chunk);
    widen(small, static_cast<float*>(buffer) + done, chunk);
  }
  return buffer;
}

void store_converted(DType dtype, const void* from, char* at, int64_t stride, int64_t count) {
  const Loops& use = loops();
  size_t size = dtype_size(dtype);
  if (!is_small(dtype)) {
    if (from == at) return;
    if (stride == 1 || count <= 1) {
      std::memcpy(at, from, static_cast<size_t>(count) * size);
    } else {
      use.scatter[size_index(dtype)](from, at, stride, count);
    }
    return;
  }
  auto round = dtype == DType::f16 ? use.round_f16 : use.round_bf16;
  if (stride == 1 || count <= 1) {
    round(static_cast<const float*>(from), reinterpret_cast<uint16_t*>(at), count);
    return;
  }
  uint16_t small[kChunk];
  for (int64_t done = 0; done < count; done += kChunk) {
    int64_t chunk = std::min(kChunk, count - done);
    round(static_cast<const float*>(from) + done, small, chunk);
    use.scatter[1](small, at + done * stride * 2, stride, chunk);
  }
}

void stream_out(const void* from, char* to, size_t bytes) {
  size_t off = std::min((64 - reinterpret_cast<uintptr_t>(to) % 64) % 64, bytes);
  std::memcpy(to, from, off);
  loops().stream(static_cast<const char*>(from) + off, to + off, bytes - off);
}

Scalar::Scalar(Number number, ArithmeticType kind, const Shape& shape, bool saturate) {
  static constexpr DType kTypes[] = {DType::f32, DType::f64, DType::i64, DType::i32, DType::u8};
  visit_number(kTypes[kind], [&](auto type) {
    using T = decltype(type);
    T value = saturate            ? nearest_of<T>(number)
              : number.is_integer ? convert<T>(number.integer)
                                  : convert<T>(number.real);
    std::memcpy(storage, &value, sizeof value);
  });
  view.dtype = kTypes[kind];
  view.shape = shape;
  view.data = storage;
}

void strided_loop(const Stream& stream, const View* const* in, int inputs, const View& out,
                  int64_t grain, As as, RunCall f) {
  const View* views[kViewsMax];
  std::copy(in, in + inputs, views);
  views[inputs] = &out;
  int64_t count = out.count();
  if (count == 0) return;
  StridedLoop loop(views, inputs + 1, as, f);
  parallel_for(stream.threads, count, grain,
               [&](int64_t first, int64_t last) { loop.run_range(first, last); });
}

char* row_at(const View& view, int64_t row, int inner) {
  int64_t offset = 0;
  for (int dim = view.rank() - inner - 1; dim >= 0; dim--) {
    int64_t size = view.shape[dim];
    if (size == 1) continue;
    if (dim == 0) {  // avoids most divisions
      offset += row * view.strides[dim];
      break;
    }
    offset += row % size * view.strides[dim];
    row /= size;
  }
  return view.data + offset * static_cast<int64_t>(dtype_size(view.dtype));
}

int64_t rows_of(const View& view, int inner) {
  int64_t rows = 1;
  for (int dim = 0; dim < view.rank() - inner; dim++) rows *= view.shape[dim];
  return rows;
}

}  // namespace flow::cpu
