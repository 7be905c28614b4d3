// Reductions. Sums are computed in double. Work is split by results, or, if they are few, the
// elements of each result are split among the threads.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/elementwise.hpp"

namespace flow::cpu {
namespace {

constexpr int kPartsMax = 256;
constexpr int64_t kColumns = 256;

struct StridedDims {  // innermost first
  int rank = 0;
  int64_t sizes[kRankMax] = {}, strides[kRankMax] = {};  // in elements
  int64_t count = 1;
};

StridedDims dims_of(const View& view, int first, int last) {
  StridedDims dims;
  for (int dim = last - 1; dim >= first; dim--) {
    int64_t size = view.shape[dim];
    dims.count *= size;
    if (size == 1) continue;
    int top = dims.rank - 1;
    if (top >= 0 && view.strides[dim] == dims.strides[top] * dims.sizes[top]) {
      dims.sizes[top] *= size;
    } else {
      dims.sizes[dims.rank] = size;
      dims.strides[dims.rank++] = view.strides[dim];
    }
  }
  return dims;
}

int64_t offset_of(const StridedDims& dims, int64_t position) {
  int64_t offset = 0;
  for (int dim = 0; dim < dims.rank; dim++) {
    offset += position % dims.sizes[dim] * dims.strides[dim];
    position /= dims.sizes[dim];
  }
  return offset;
}

// Elements first to last of `dims`, chunk by chunk, in their compute type.
template <typename F>
void for_chunks(DType dtype, const char* at, const StridedDims& dims, int64_t first, int64_t last,
                F f) {
  alignas(64) char buffer[kChunk * 8];
  auto size = static_cast<int64_t>(dtype_size(dtype));
  int64_t width = dims.rank > 0 ? dims.sizes[0] : 1, stride = dims.rank > 0 ? dims.strides[0] : 1;
  bool direct = stride == 1 && !is_small(dtype);
  while (first < last) {
    int64_t length = std::min(width - first % width, last - first);
    if (!direct) length = std::min(length, kChunk);
    f(load_converted(dtype, at + offset_of(dims, first) * size, stride, length, buffer), length);
    first += length;
  }
}

struct Total {
  double sum = 0;
  int64_t whole = 0;
  bool started = false;
  alignas(8) char most[8] = {};
};

bool is_most(Reduce op) {
  return op == Reduce::max || op == Reduce::min || op == Reduce::any || op == Reduce::all;
}
bool wants_largest(Reduce op) { return op == Reduce::max || op == Reduce::any; }

template <typename T>
void product_of_integers(const void* from, int64_t count, int64_t& total) {
  const T* in = static_cast<const T*>(from);
  auto product = static_cast<uint64_t>(total);
  for (int64_t i = 0; i < count; i++) product *= static_cast<uint64_t>(static_cast<int64_t>(in[i]));
  total = static_cast<int64_t>(product);
}

void add_most(const Loops& use, bool largest, ArithmeticType kind, const void* in, int64_t count,
              Total& total) {
  size_t size = size_of_kind(kind);
  alignas(8) char both[16];
  use.most[largest][kind](in, count, both + size);
  if (!total.started) {
    std::memcpy(total.most, both + size, size);
  } else {
    std::memcpy(both, total.most, size);
    use.most[largest][kind](both, 2, total.most);
  }
  total.started = true;
}

void add(Reduce op, ArithmeticType kind, double mean, const void* in, int64_t count, Total& total) {
  const Loops& use = loops();
  if (is_most(op)) return add_most(use, wants_largest(op), kind, in, count, total);
  if (kind < kFloatKinds) {
    if (op == Reduce::product) {
      total.sum *= use.product[kind](in, count);
    } else if (op == Reduce::norm || op == Reduce::var) {
      total.sum += use.sum_of_squares[kind](in, mean, count);
    } else {
      total.sum += use.sum[kind](in, count);
    }
  } else if (op == Reduce::sum) {
    total.whole += use.sum_integers[kind](in, count);
  } else if (kind == kI64) {
    product_of_integers<int64_t>(in, count, total.whole);
  } else if (kind == kI32) {
    product_of_integers<int32_t>(in, count, total.whole);
  } else {
    product_of_integers<uint8_t>(in, count, total.whole);
  }
}

Total empty_total(Reduce op) {
  Total total;
  if (op == Reduce::product) total.sum = static_cast<double>(total.whole = 1);
  return total;
}

void join(Reduce op, ArithmeticType kind, const Total& part, Total& total) {
  if (is_most(op)) {
    if (part.started) add_most(loops(), wants_largest(op), kind, part.most, 1, total);
  } else if (op == Reduce::product) {
    total.sum *= part.sum;
    total.whole = static_cast<int64_t>(static_cast<uint64_t>(total.whole) *
                                       static_cast<uint64_t>(part.whole));
  } else {
    total.sum += part.sum;
    total.whole += part.whole;
  }
}

double finish(Reduce op, double sum, int64_t count, double correction) {
  if (op == Reduce::mean) return sum / static_cast<double>(count);
  if (op == Reduce::norm) return std::sqrt(sum);
  if (op == Reduce::var) return sum / std::max(static_cast<double>(count) - correction, 0.0);
  return sum;
}

void store(DType dtype, double value, char* at) {
  visit_float(dtype, [&](auto type) {
    using T = decltype(type);
    *reinterpret_cast<T*>(at) = convert<T>(value);
  });
}

struct ReductionJob {
  Reduce op;
  const View& in;
  const View& out;
  double correction;
  ArithmeticType kind;
  StridedDims reduced;

  void store_total(const Total& total, char* at) const {
    if (op == Reduce::any || op == Reduce::all) {
      bool nothing = op == Reduce::all;
      *at = static_cast<char>(total.started ? total.most[0] != 0 : nothing);
    } else if (is_most(op)) {
      store_converted(out.dtype, total.most, at, 1, 1);
    } else if (kind >= kFloatKinds) {
      *reinterpret_cast<int64_t*>(at) = total.whole;
    } else {
      store(out.dtype, finish(op, total.sum, reduced.count, correction), at);
    }
  }
};

Total total_of(const ReductionJob& job, Reduce op, double mean, const char* at, int64_t first,
               int64_t last) {
  Total total = empty_total(op);
  for_chunks(job.in.dtype, at, job.reduced, first, last, [&](const void* chunk, int64_t count) {
    add(op, job.kind, mean, chunk, count, total);
  });
  return total;
}

double mean_of(const ReductionJob& job, const Total& total) {
  return total.sum / static_cast<double>(job.reduced.count);
}

// Few results of many elements each: the elements are split.
void reduce_cut(const Stream& stream, const ReductionJob& job, const char* at, char* to) {
  Total parts[kPartsMax];
  int64_t count = job.reduced.count;
  int64_t cuts = std::min<int64_t>({stream.threads, kPartsMax, count / kGrainCheap});
  cuts = std::max<int64_t>(cuts, 1);
  auto pass = [&](Reduce op, double mean) {
    parallel_for(stream.threads, cuts, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++)
        parts[i] = total_of(job, op, mean, at, count * i / cuts, count * (i + 1) / cuts);
    });
    Total total = empty_total(op);
    for (int64_t i = 0; i < cuts; i++) join(op, job.kind, parts[i], total);
    return total;
  };
  double mean = job.op == Reduce::var ? mean_of(job, pass(Reduce::sum, 0)) : 0;
  job.store_total(pass(job.op, mean), to);
}

// The results are contiguous, and so are their elements: rows are added to a row of results.
bool takes_columns(const ReductionJob& job) {
  if (job.reduced.rank == 0 || job.reduced.strides[0] == 1 || job.out.rank() == 0) return false;
  int last = job.out.rank() - 1;
  if (job.in.strides[last] != 1 || job.out.shape[last] < 8) return false;
  if (job.op == Reduce::max || job.op == Reduce::min) return true;
  return job.kind < kFloatKinds && job.op != Reduce::product;
}

void reduce_columns(const Stream& stream, const ReductionJob& job) {
  const Loops& use = loops();
  int last = job.out.rank() - 1;
  int64_t columns = job.out.shape[last], outer = rows_of(job.out);
  int64_t width =
      std::min(kColumns, std::max<int64_t>(16, (columns / stream.threads + 15) / 16 * 16));
  int64_t blocks = (columns + width - 1) / width;
  auto in_size = static_cast<int64_t>(dtype_size(job.in.dtype)),
       out_size = static_cast<int64_t>(dtype_size(job.out.dtype));
  View heads = job.in;  // the leading dimensions only
  heads.shape.rank = job.out.rank();
  int64_t grain =
      std::max<int64_t>(1, kGrainCheap / std::max<int64_t>(1, width * job.reduced.count));
  parallel_for(stream.threads, outer * blocks, grain, [&](int64_t first, int64_t end) {
    double sums[kColumns], means[kColumns];
    alignas(64) char most[kColumns * 8], buffer[kColumns * 8];
    for (int64_t unit = first; unit < end; unit++) {
      int64_t at = unit % blocks * width, count = std::min(width, columns - at);
      const char* from = row_at(heads, unit / blocks) + at * in_size;
      char* to = row_at(job.out, unit / blocks) + at * job.out.strides[last] * out_size;
      auto for_rows = [&](auto f) {
        for (int64_t row = 0; row < job.reduced.count; row++)
          f(load_converted(job.in.dtype, from + offset_of(job.reduced, row) * in_size, 1, count,
                           buffer),
            row);
      };
      if (is_most(job.op)) {
        for_rows([&](const void* row, int64_t number) {
          if (number == 0) {
            std::memcpy(most, row, static_cast<size_t>(count) * size_of_kind(job.kind));
          } else {
            use.add_most[wants_largest(job.op)][job.kind](row, most, count);
          }
        });
        store_converted(job.out.dtype, most, to, job.out.strides[last], count);
        continue;
      }
      std::fill(sums, sums + count, 0.0);
      std::fill(means, means + count, 0.0);
      bool squares = job.op == Reduce::norm || job.op == Reduce::var;
      if (job.op == Reduce::var) {
        for_rows([&](const void* row, int64_t) { use.add_sums[job.kind](row, means, count); });
        for (int64_t i = 0; i < count; i++) means[i] /= static_cast<double>(job.reduced.count);
      }
      for_rows([&](const void* row, int64_t) {
        if (squares) {
          use.add_sums_of_squares[job.kind](row, means, sums, count);
        } else {
          use.add_sums[job.kind](row, sums, count);
        }
      });
      for (int64_t i = 0; i < count; i++)
        store(job.out.dtype, finish(job.op, sums[i], job.reduced.count, job.correction),
              to + i * job.out.strides[last] * out_size);
    }
  });
}

int reduce(Stream& stream, Reduce op, const View& in, double correction, const View& out) {
  bool of_booleans = op == Reduce::any || op == Reduce::all;
  bool of_integers = op == Reduce::sum || op == Reduce::product;
  if (of_booleans != (in.dtype == DType::boolean) && !of_integers) return kUnsupported;
  if (!is_float(in.dtype) && !of_integers && !is_most(op)) return kUnsupported;
  ReductionJob job{op, in, out, correction, kind_of(in.dtype), dims_of(in, out.rank(), in.rank())};
  int64_t results = out.count();
  if (results == 0) return kDone;
  if (job.reduced.count == 0 && (op == Reduce::max || op == Reduce::min)) return kUnsupported;
  if (job.reduced.count > 0 && takes_columns(job)) {
    reduce_columns(stream, job);
    return kDone;
  }
  View heads = in;
  heads.shape.rank = out.rank();
  if (results < stream.threads && job.reduced.count >= 2 * kGrainCheap) {
    for (int64_t i = 0; i < results; i++)
      reduce_cut(stream, job, row_at(heads, i, 0), row_at(out, i, 0));
    return kDone;
  }
  int64_t grain = std::max<int64_t>(1, kGrainCheap / std::max<int64_t>(1, job.reduced.count));
  parallel_for(stream.threads, results, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const char* at = row_at(heads, i, 0);
      double mean = 0;
      if (op == Reduce::var)
        mean = mean_of(job, total_of(job, Reduce::sum, 0, at, 0, job.reduced.count));
      job.store_total(total_of(job, op, mean, at, 0, job.reduced.count), row_at(out, i, 0));
    }
  });
  return kDone;
}

int extreme(Stream& stream, bool largest, const View& in, int64_t base, const View& value,
            const View& index) {
  if (in.dtype == DType::boolean) return kUnsupported;
  ArithmeticType kind = kind_of(in.dtype);
  const Loops& use = loops();
  size_t size = size_of_kind(kind);
  StridedDims row = dims_of(in, in.rank() - 1, in.rank());
  int64_t rows = value.count();
  if (row.count == 0) return rows == 0 ? kDone : kUnsupported;
  int64_t grain = std::max<int64_t>(1, kGrainCheap / row.count);
  parallel_for(stream.threads, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      alignas(8) char best[8], both[16], joined[8];
      int64_t at = -1, done = 0;
      for_chunks(in.dtype, row_at(in, i), row, 0, row.count, [&](const void* chunk, int64_t count) {
        if (at < 0) {
          use.most[largest][kind](chunk, count, best);
          at = use.find[kind](chunk, count, best);
        } else {
          std::memcpy(both, best, size);
          use.most[largest][kind](chunk, count, both + size);
          use.most[largest][kind](both, 2, joined);
          // The first of equal ones wins, also the first NaN.
          if (use.find[kind](best, 1, joined) != 0) {
            std::memcpy(best, joined, size);
            at = done + use.find[kind](chunk, count, best);
          }
        }
        done += count;
      });
      store_converted(value.dtype, best, row_at(value, i, 0), 1, 1);
      *reinterpret_cast<int64_t*>(row_at(index, i, 0)) = base + at;
    }
  });
  return kDone;
}

int cumsum(Stream& stream, const View& in, const View& out) {
  if (!is_float(in.dtype) && in.dtype != DType::i64 && in.dtype != DType::i32) return kUnsupported;
  int last = in.rank() - 1;
  int64_t width = in.shape[last], rows = rows_of(in);
  if (width == 0) return kDone;
  int64_t grain = std::max<int64_t>(1, kGrainCheap / width);
  parallel_for(stream.threads, rows, grain, [&](int64_t first, int64_t end) {
    visit(in.dtype, [&](auto type) {
      using T = decltype(type);
      using Sum = std::conditional_t<std::is_integral_v<Compute<T>>, uint64_t, double>;
      for (int64_t i = first; i < end; i++) {
        const T* from = reinterpret_cast<const T*>(row_at(in, i));
        T* to = reinterpret_cast<T*>(row_at(out, i));
        Sum sum = 0;
        for (int64_t j = 0; j < width; j++) {
          sum += convert<Sum>(from[j * in.strides[last]]);
          to[j * out.strides[last]] = convert<T>(sum);
        }
      }
    });
  });
  return kDone;
}

}  // namespace

void add_reduction_rows(Kernels& table) {
  table.reduce = reduce;
  table.extreme = extreme;
  table.cumsum = cumsum;
}

}  // namespace flow::cpu
