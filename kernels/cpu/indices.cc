// Operations by index. Scatters are split by destination, so that one thread adds to an element, in
// the order of the index.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/elementwise.hpp"

namespace flow::cpu {
namespace {

int64_t index_at(const View& index, const char* at) {
  return index.dtype == DType::i32 ? *reinterpret_cast<const int32_t*>(at)
                                   : *reinterpret_cast<const int64_t*>(at);
}

// Stores 1 + the position of an invalid index if the caller requests it; true if the index is in
// range.
bool is_inside(const Stream& stream, int64_t index, int64_t count, int64_t position) {
  if (index >= 0 && index < count) return true;
  if (stream.fault != nullptr) __atomic_store_n(stream.fault, position + 1, __ATOMIC_RELAXED);
  return false;
}

void add_to(DType dtype, const char* from, int64_t stride, char* to, int64_t to_stride,
            int64_t count) {
  visit_float(dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const T* in = reinterpret_cast<const T*>(from);
    T* out = reinterpret_cast<T*>(to);
    for (int64_t i = 0; i < count; i++)
      out[i * to_stride] = convert<T>(convert<C>(out[i * to_stride]) + convert<C>(in[i * stride]));
  });
}

int gather_rows(Stream& stream, const View& table, const View& index, int64_t base,
                const View& out) {
  int last = out.rank() - 1;
  int64_t width = table.shape[1], rows = index.count(), count = table.shape[0];
  auto size = static_cast<int64_t>(dtype_size(out.dtype));
  bool is_plain = (table.strides[1] == 1 && out.strides[last] == 1) || width <= 1;
  const Loops& use = loops();
  int64_t grain = std::max<int64_t>(1, kGrainCheap / std::max<int64_t>(1, width));
  parallel_for(stream.threads, rows, grain, [&](int64_t first, int64_t end) {
    alignas(64) char chunk[kChunk * 8];
    for (int64_t i = first; i < end; i++) {
      int64_t row = index_at(index, row_at(index, i, 0)) - base;
      if (!is_inside(stream, row, count, i)) continue;
      const char* from = table.data + row * table.strides[0] * size;
      char* to = row_at(out, i);
      if (is_plain) {
        std::memcpy(to, from, static_cast<size_t>(width * size));
        continue;
      }
      for (int64_t at = 0; at < width; at += kChunk) {
        int64_t length = std::min(kChunk, width - at);
        use.gather[size_index(out.dtype)](from + at * table.strides[1] * size, table.strides[1],
                                          chunk, length);
        use.scatter[size_index(out.dtype)](chunk, to + at * out.strides[last] * size,
                                           out.strides[last], length);
      }
    }
  });
  return kDone;
}

// The positions of an index by destination, in order for each destination: `positions` from
// starts[place] to starts[place + 1]. Invalid ones are left out.
struct IndexBuckets {
  int64_t *starts = nullptr, *positions = nullptr;
  int64_t count = 0;

  bool allocate(Scratch& scratch, int64_t bucket_count, int64_t index_count) {
    count = bucket_count;
    starts = scratch.take<int64_t>(count + 2);
    positions = scratch.take<int64_t>(index_count);
    return starts != nullptr && (positions != nullptr || index_count == 0);
  }
  template <typename BucketOf>
  void sort(int64_t index_count, BucketOf bucket_of) const {
    std::fill(starts, starts + count + 2, 0);
    for (int64_t i = 0; i < index_count; i++)
      if (int64_t bucket = bucket_of(i); bucket >= 0) starts[bucket + 2]++;
    for (int64_t bucket = 0; bucket < count; bucket++) starts[bucket + 2] += starts[bucket + 1];
    // starts[place + 1] is the next free position of `place`, and ends as the start of the next
    // one.
    for (int64_t i = 0; i < index_count; i++)
      if (int64_t bucket = bucket_of(i); bucket >= 0) positions[starts[bucket + 1]++] = i;
  }
};

// f16 and bf16: all values added to a row are summed in f32 and rounded once.
int scatter_add_small_rows(Stream& stream, const View& grad, const View& index, int64_t base,
                           const View& out) {
  int last = grad.rank() - 1;
  int64_t width = out.shape[1], count = out.shape[0];
  auto size = static_cast<int64_t>(dtype_size(out.dtype));
  IndexBuckets buckets;
  if (!buckets.allocate(stream.scratch, count, index.count())) return kNeedsScratch;
  buckets.sort(index.count(), [&](int64_t i) {
    int64_t row = index_at(index, row_at(index, i, 0)) - base;
    return is_inside(stream, row, count, i) ? row : int64_t{-1};
  });
  const Loops& use = loops();
  auto add = use.binary[static_cast<int>(Binary::add)][kF32];
  int64_t grain = std::max<int64_t>(1, kGrainCheap / std::max<int64_t>(1, width));
  parallel_for(stream.threads, count, grain, [&](int64_t begin, int64_t end) {
    alignas(64) float sums[kChunk], terms[kChunk];
    for (int64_t row = begin; row < end; row++) {
      if (buckets.starts[row] == buckets.starts[row + 1]) continue;
      for (int64_t at = 0; at < width; at += kChunk) {
        int64_t length = std::min(kChunk, width - at);
        char* to = out.data + (row * out.strides[0] + at * out.strides[1]) * size;
        load_converted(out.dtype, to, out.strides[1], length, sums);
        for (int64_t i = buckets.starts[row]; i < buckets.starts[row + 1]; i++) {
          const char* from = row_at(grad, buckets.positions[i]) + at * grad.strides[last] * size;
          load_converted(out.dtype, from, grad.strides[last], length, terms);
          add(sums, terms, sums, length);
        }
        store_converted(out.dtype, sums, to, out.strides[1], length);
      }
    }
  });
  return kDone;
}

int scatter_add_rows(Stream& stream, const View& grad, const View& index, int64_t base,
                     const View& out) {
  if (!is_float(out.dtype)) return kUnsupported;
  int last = grad.rank() - 1;
  int64_t width = out.shape[1], rows = index.count(), count = out.shape[0];
  auto size = static_cast<int64_t>(dtype_size(out.dtype));
  if (rows == 0 || width == 0) return kDone;
  if (is_small(out.dtype)) return scatter_add_small_rows(stream, grad, index, base, out);
  const Loops& use = loops();
  bool adds_runs = grad.strides[last] == 1 && out.strides[1] == 1;
  auto add = use.binary[static_cast<int>(Binary::add)][kind_of(out.dtype)];
  // Each thread owns some rows of `out` and reads the whole index.
  int64_t parts =
      std::max<int64_t>(1, std::min<int64_t>({stream.threads, count, rows * width / kGrainCheap}));
  parallel_for(stream.threads, parts, 1, [&](int64_t begin, int64_t end) {
    int64_t first = count * begin / parts, past = count * end / parts;
    for (int64_t i = 0; i < rows; i++) {
      int64_t row = index_at(index, row_at(index, i, 0)) - base;
      if (row >= first && row < past) {
        char* to = out.data + row * out.strides[0] * size;
        const char* from = row_at(grad, i);
        if (adds_runs) {
          add(to, from, to, width);
        } else {
          add_to(out.dtype, from, grad.strides[last], to, out.strides[1], width);
        }
      } else if (begin == 0) {
        is_inside(stream, row, count, i);
      }
    }
  });
  return kDone;
}

// Calls f(row of one, row of the other, row of the index, position) for the last dimension.
template <typename F>
int for_index_rows(Stream& stream, const View& one, const View& other, const View& index, F f) {
  int64_t width = index.shape.last(), rows = rows_of(index);
  if (width == 0) return kDone;
  int64_t grain = std::max<int64_t>(1, kGrainCostly / width);
  parallel_for(stream.threads, rows, grain, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++)
      f(row_at(one, i), row_at(other, i), row_at(index, i), i * width);
  });
  return kDone;
}

int gather_last(Stream& stream, const View& in, const View& index, int64_t base, const View& out) {
  int last = in.rank() - 1;
  int64_t width = index.shape[last], count = in.shape[last];
  auto index_size = static_cast<int64_t>(dtype_size(index.dtype));
  return visit(in.dtype, [&](auto type) {
    using T = decltype(type);
    return for_index_rows(
        stream, in, out, index,
        [&](const char* from, char* to, const char* indices, int64_t position) {
          for (int64_t j = 0; j < width; j++) {
            int64_t at = index_at(index, indices + j * index.strides[last] * index_size) - base;
            if (!is_inside(stream, at, count, position + j)) continue;
            reinterpret_cast<T*>(to)[j * out.strides[last]] =
                reinterpret_cast<const T*>(from)[at * in.strides[last]];
          }
        });
  });
}

// f16 and bf16, like scatter_add_small_rows: the sums of a row are f32 until all is added.
int scatter_add_small_last(Stream& stream, const View& grad, const View& index, int64_t base,
                           const View& out) {
  int last = grad.rank() - 1;
  int64_t width = index.shape[last], count = out.shape[last], rows = rows_of(index);
  auto index_size = static_cast<int64_t>(dtype_size(index.dtype));
  int64_t parts = std::max<int64_t>(
      1, std::min<int64_t>({stream.threads, rows, rows * (width + count) / kGrainCostly}));
  float* room = stream.scratch.take<float>(parts * (count + width));
  if (room == nullptr) return kNeedsScratch;
  parallel_for(stream.threads, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; part++) {
      float *sums = room + part * (count + width), *terms = sums + count;
      for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; row++) {
        const char* indices = row_at(index, row);
        load_converted(out.dtype, row_at(out, row), out.strides[last], count, sums);
        load_converted(out.dtype, row_at(grad, row), grad.strides[last], width, terms);
        for (int64_t j = 0; j < width; j++) {
          int64_t at = index_at(index, indices + j * index.strides[last] * index_size) - base;
          if (is_inside(stream, at, count, row * width + j)) sums[at] += terms[j];
        }
        store_converted(out.dtype, sums, row_at(out, row), out.strides[last], count);
      }
    }
  });
  return kDone;
}

int scatter_add_last(Stream& stream, const View& grad, const View& index, int64_t base,
                     const View& out) {
  if (!is_float(out.dtype)) return kUnsupported;
  int last = grad.rank() - 1;
  int64_t width = index.shape[last], count = out.shape[last];
  auto size = static_cast<int64_t>(dtype_size(out.dtype)),
       index_size = static_cast<int64_t>(dtype_size(index.dtype));
  if (is_small(out.dtype) && width > 1 && rows_of(index) > 0)
    return scatter_add_small_last(stream, grad, index, base, out);
  return for_index_rows(
      stream, grad, out, index,
      [&](const char* from, char* to, const char* indices, int64_t position) {
        for (int64_t j = 0; j < width; j++) {
          int64_t at = index_at(index, indices + j * index.strides[last] * index_size) - base;
          if (!is_inside(stream, at, count, position + j)) continue;
          add_to(out.dtype, from + j * grad.strides[last] * size, 1,
                 to + at * out.strides[last] * size, 1, 1);
        }
      });
}

}  // namespace

void add_index_rows(Kernels& table) {
  table.gather_rows = gather_rows;
  table.scatter_add_rows = scatter_add_rows;
  table.gather_last = gather_last;
  table.scatter_add_last = scatter_add_last;
}

}  // namespace flow::cpu
