// Top-k, sampling and histograms.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/row_buffers.hpp"

namespace flow::cpu {
namespace {

int top_k(Stream& stream, const View& in, int64_t base, const View& values, const View& index) {
  if (in.dtype == DType::boolean) return kUnsupported;
  int64_t rows = in.shape[0], columns = in.shape[1], k = values.shape[1];
  RowParts parts(stream, rows, columns, kGrainCostly);
  int64_t* room = stream.scratch.take<int64_t>(parts.parts * columns);
  if (room == nullptr && columns > 0) return kNeedsScratch;
  visit(in.dtype, [&](auto type) {
    using T = decltype(type);
    parts.run(stream, [&](int64_t part, int64_t first, int64_t last) {
      int64_t* order = room + part * columns;
      for (int64_t row = first; row < last; row++) {
        const T* from = in.at<T>() + row * in.strides[0];
        auto value = [&](int64_t i) { return convert<Compute<T>>(from[i * in.strides[1]]); };
        auto precedes = [&](int64_t a, int64_t b) {
          auto x = value(a), y = value(b);
          bool x_nan = is_nan(x), y_nan = is_nan(y);
          if (x_nan != y_nan) return x_nan;
          if (!x_nan && x != y) return x > y;
          return a < b;
        };
        std::iota(order, order + columns, int64_t{0});
        if (k < columns) std::nth_element(order, order + k, order + columns, precedes);
        std::sort(order, order + k, precedes);
        for (int64_t i = 0; i < k; i++) {
          values.at<T>()[row * k + i] = from[order[i] * in.strides[1]];
          index.at<int64_t>()[row * k + i] = base + order[i];
        }
      }
    });
  });
  return kDone;
}

int sample(Stream& stream, const View& logits, double temperature, Seed seed, uint64_t first,
           int64_t base, const View& index) {
  if (!is_float(logits.dtype)) return kUnsupported;
  int64_t classes = logits.shape.last();
  if (classes == 0) return index.count() == 0 ? kDone : kUnsupported;
  RowParts parts(stream, rows_of(logits), classes, kGrainCostly);
  RowBuffer from(stream.scratch, parts, logits);
  if (!from.fits()) return kNeedsScratch;
  const Loops& use = loops();
  ArithmeticType kind = kind_of(logits.dtype);
  parts.run(stream, [&](int64_t part, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      const void* x = from.read(part, row);
      alignas(8) char most[8];
      use.most[1][kind](x, classes, most);
      int64_t picked = use.find[kind](x, classes, most);
      if (temperature > 0) {
        auto weight = [&](int64_t i) {
          double value = kind == kF64 ? static_cast<const double*>(x)[i]
                                      : static_cast<double>(static_cast<const float*>(x)[i]);
          double largest = kind == kF64
                               ? *reinterpret_cast<const double*>(most)
                               : static_cast<double>(*reinterpret_cast<const float*>(most));
          return std::exp((value - largest) / temperature);
        };
        double total = 0, sum = 0;
        for (int64_t i = 0; i < classes; i++) total += weight(i);
        double aim = total * uniform_double(seed.value, first + static_cast<uint64_t>(row),
                                            RandomUse::sample);
        for (int64_t i = 0; i < classes; i++) {
          double size = weight(i);
          if (size > 0) picked = i;  // rounding may move the target beyond the last
          sum += size;
          if (sum > aim) break;
        }
      }
      *reinterpret_cast<int64_t*>(row_at(index, row, 0)) = base + picked;
    }
  });
  return kDone;
}

int histogram(Stream& stream, const View& in, double low, double high, const View& counts) {
  if (in.dtype == DType::boolean) return kUnsupported;
  int64_t bins = counts.count(), count = in.count();
  int64_t parts = std::clamp<int64_t>(count / kGrainCostly, 1, std::max(stream.threads, 1));
  int64_t* room = stream.scratch.take<int64_t>(parts * bins);
  if (room == nullptr && bins > 0) return kNeedsScratch;
  if (bins == 0) return kDone;
  std::fill(room, room + parts * bins, int64_t{0});
  auto size = static_cast<int64_t>(dtype_size(in.dtype));
  double scale = static_cast<double>(bins) / (high - low);
  visit(in.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(stream.threads, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; part++) {
        int64_t* mine = room + part * bins;
        for (int64_t i = count * part / parts; i < count * (part + 1) / parts; i++) {
          const char* at = is_dense(in) ? in.data + i * size : row_at(in, i, 0);
          double value = convert<double>(*reinterpret_cast<const T*>(at));
          if (!(value >= low && value <= high)) continue;
          auto bin = static_cast<int64_t>((value - low) * scale);
          mine[std::min(bin, bins - 1)]++;
        }
      }
    });
  });
  for (int64_t bin = 0; bin < bins; bin++) {
    int64_t sum = 0;
    for (int64_t part = 0; part < parts; part++) sum += room[part * bins + bin];
    counts.at<int64_t>()[bin] = sum;
  }
  return kDone;
}

}  // namespace

void add_topk_sampling_rows(Kernels& table) {
  table.top_k = top_k;
  table.sample = sample;
  table.histogram = histogram;
}

}  // namespace flow::cpu
