// Attention on the CPU: blocks of queries times blocks of keys (Dao et al., "FlashAttention"), so
// that the products of all queries and keys are never in memory at once. The backward traverses
// them twice, by queries for dq and by keys for dk and dv: each sum is computed by one thread, in
// one order.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/blas.hpp"
#include "kernels/cpu/row_buffers.hpp"

namespace flow::cpu {
namespace {

constexpr int64_t kQueries = 64, kKeys = 128;

// Buffers of one thread: blocks of rows of d, and of products of queries and keys.
struct ThreadBuffers {
  char *query, *key, *value, *grad, *sums, *more_sums, *scores, *score_grads;
  double *largest, *total;

  static int64_t bytes(int64_t d, int64_t size) {
    return (6 * kKeys * d + 2 * kQueries * kKeys) * size + 2 * kQueries * 8 + 1024;
  }
  ThreadBuffers(char* at, int64_t d, int64_t size) {
    auto take = [&](int64_t count) {
      char* chunk = at;
      at += (count * size + 63) / 64 * 64;
      return chunk;
    };
    query = take(kKeys * d), key = take(kKeys * d), value = take(kKeys * d), grad = take(kKeys * d);
    sums = take(kKeys * d), more_sums = take(kKeys * d);
    scores = take(kQueries * kKeys), score_grads = take(kQueries * kKeys);
    largest = reinterpret_cast<double*>(at);
    total = largest + kQueries;
  }
};

// Rows first to first + count of head `head`: in place, or converted into `buffers`.
Matrix rows_at(const View& view, int64_t batch, int64_t head, int64_t first, int64_t count,
               char* buffers) {
  int64_t d = view.shape[3], stride = view.strides[2];
  auto size = static_cast<int64_t>(dtype_size(view.dtype));
  const char* at =
      view.data + (batch * view.strides[0] + head * view.strides[1] + first * stride) * size;
  if (!is_small(view.dtype) && (stride >= d || count <= 1))
    return {at, count <= 1 ? std::max<int64_t>(d, 1) : stride, false};
  auto compute = static_cast<int64_t>(size_of_kind(kind_of(view.dtype)));
  for (int64_t i = 0; i < count; i++) {
    char* row = buffers + i * d * compute;
    const void* found = load_converted(view.dtype, at + i * stride * size, 1, d, row);
    if (found != row) std::memcpy(row, found, static_cast<size_t>(d * compute));
  }
  return {buffers, std::max<int64_t>(d, 1), false};
}

void store_rows(const View& view, int64_t batch, int64_t head, int64_t first, int64_t count,
                const char* from) {
  int64_t d = view.shape[3];
  auto size = static_cast<int64_t>(dtype_size(view.dtype)),
       compute = static_cast<int64_t>(size_of_kind(kind_of(view.dtype)));
  for (int64_t i = 0; i < count; i++)
    store_converted(view.dtype, from + i * d * compute,
                    view.data + (batch * view.strides[0] + head * view.strides[1] +
                                 (first + i) * view.strides[2]) *
                                    size,
                    1, d);
}

Matrix transposed(Matrix matrix) {
  matrix.transposed = true;
  return matrix;
}

const void* row_of(const Matrix& matrix, int64_t row, int64_t size) {
  return static_cast<const char*>(matrix.data) + row * matrix.leading * size;
}

struct AttentionShapes {
  int64_t batch, heads, groups, queries, keys, d, size;
  ArithmeticType kind;
  bool causal;
  double scale;

  AttentionShapes(const Attention& options, const View& q, const View& k)
      : batch(q.shape[0]),
        heads(q.shape[1]),
        groups(k.shape[1]),
        queries(q.shape[2]),
        keys(k.shape[2]),
        d(q.shape[3]),
        size(static_cast<int64_t>(size_of_kind(kind_of(q.dtype)))),
        kind(kind_of(q.dtype)),
        causal(options.causal),
        scale(options.scale) {}
  int64_t group_of(int64_t head) const { return head / (heads / groups); }
  /// How many of the `count` keys from `first` on query `query` attends to.
  int64_t seen(int64_t query, int64_t first, int64_t count) const {
    if (!causal) return count;
    return std::clamp<int64_t>(query + keys - queries + 1 - first, 0, count);
  }
  int64_t query_blocks() const { return (queries + kQueries - 1) / kQueries; }
  int64_t key_blocks() const { return (keys + kKeys - 1) / kKeys; }
};

// Parts of the work with their buffers.
struct AttentionParts {
  int64_t units, parts, room_bytes;
  char* buffers;
  AttentionParts(Stream& stream, const AttentionShapes& shapes, int64_t unit_count, int64_t work)
      : units(unit_count),
        room_bytes((ThreadBuffers::bytes(shapes.d, shapes.size) + 255) / 256 * 256) {
    parts = std::max<int64_t>(
        1, std::min<int64_t>({stream.threads, units, work / (kGrainCheap * 8) + 1}));
    buffers = stream.scratch.take<char>(parts * room_bytes);
  }
  template <typename F>
  void run(Stream& stream, const AttentionShapes& shapes, F f) const {
    if (units == 0) return;
    parallel_for(stream.threads, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; part++) {
        ThreadBuffers mine(buffers + part * room_bytes, shapes.d, shapes.size);
        for (int64_t i = units * part / parts; i < units * (part + 1) / parts; i++) f(mine, i);
      }
    });
  }
};

int attention(Stream& stream, Attention options, const View& q, const View& k, const View& v,
              const View& out, const View& lse) {
  if (!is_float(q.dtype)) return kUnsupported;
  AttentionShapes shapes(options, q, k);
  int64_t blocks = shapes.query_blocks();
  AttentionParts parts(stream, shapes, shapes.batch * shapes.heads * blocks,
                       shapes.batch * shapes.heads * shapes.queries * shapes.keys * shapes.d);
  if (parts.buffers == nullptr) return kNeedsScratch;
  int loaded = prepare_products();
  if (loaded != kDone) return loaded;
  const Loops& use = loops();
  ArithmeticType kind = shapes.kind;
  int64_t d = shapes.d, size = shapes.size;
  parts.run(stream, shapes, [&](ThreadBuffers& buffers, int64_t unit) {
    int64_t first = unit % blocks * kQueries, head = unit / blocks % shapes.heads,
            batch = unit / blocks / shapes.heads;
    int64_t rows = std::min(kQueries, shapes.queries - first), group = shapes.group_of(head);
    Matrix query = rows_at(q, batch, head, first, rows, buffers.query);
    std::fill(buffers.largest, buffers.largest + rows, -INFINITY);
    std::fill(buffers.total, buffers.total + rows, 0.0);
    bool started = false;
    for (int64_t at = 0; at < shapes.keys; at += kKeys) {
      int64_t columns = std::min(kKeys, shapes.keys - at);
      if (shapes.seen(first + rows - 1, at, columns) == 0) break;
      Matrix key = rows_at(k, batch, group, at, columns, buffers.key);
      multiply(kind, query, transposed(key), rows, columns, d, shapes.scale, 0, buffers.scores,
               columns);
      for (int64_t i = 0; i < rows; i++) {
        char* score = buffers.scores + i * columns * size;
        int64_t seen = shapes.seen(first + i, at, columns);
        std::memset(score + seen * size, 0, static_cast<size_t>((columns - seen) * size));
        if (seen == 0) continue;
        alignas(8) char most[8];
        use.most[1][kind](score, seen, most);
        double here = kind == kF64 ? *reinterpret_cast<double*>(most)
                                   : static_cast<double>(*reinterpret_cast<float*>(most));
        double before = buffers.largest[i], now = here > before || here != here ? here : before;
        double sum = use.sum_exp[kind](score, now, score, seen);
        if (now != before) {
          double less = std::exp(before - now);
          buffers.total[i] *= less;
          char* line = buffers.sums + i * d * size;
          if (started) use.scale[kind](line, less, 0, line, d);
          buffers.largest[i] = now;
        }
        buffers.total[i] += sum;
      }
      Matrix value = rows_at(v, batch, group, at, columns, buffers.value);
      multiply(kind, {buffers.scores, columns, false}, value, rows, d, columns, 1, started ? 1 : 0,
               buffers.sums, d);
      started = true;
    }
    for (int64_t i = 0; i < rows; i++) {
      char* line = buffers.sums + i * d * size;
      double total = buffers.total[i], logarithm = buffers.largest[i] + std::log(total);
      if (!started || total == 0) {
        std::memset(line, 0, static_cast<size_t>(d * size));
        logarithm = -INFINITY;
      } else {
        use.scale[kind](line, 1 / total, 0, line, d);
      }
      set_statistic(lse, (batch * shapes.heads + head) * shapes.queries + first + i, logarithm);
    }
    store_rows(out, batch, head, first, rows, buffers.sums);
  });
  return kDone;
}

struct Backward {
  const AttentionShapes& shapes;
  const View &q, &k, &v, &out, &lse, &grad;
  double* products;  // of out and grad, row by row

  // Computes the weights of a block of queries and a block of keys into room.scores, and their
  // gradients, without the scale, into room.slopes.
  void block(ThreadBuffers& buffers, const Matrix& query, const Matrix& key, const Matrix& value,
             const Matrix& grad_rows, int64_t statistics, int64_t first, int64_t rows, int64_t at,
             int64_t columns) const {
    const Loops& use = loops();
    ArithmeticType kind = shapes.kind;
    int64_t size = shapes.size;
    multiply(kind, query, transposed(key), rows, columns, shapes.d, shapes.scale, 0, buffers.scores,
             columns);
    multiply(kind, grad_rows, transposed(value), rows, columns, shapes.d, 1, 0, buffers.score_grads,
             columns);
    for (int64_t i = 0; i < rows; i++) {
      char *score = buffers.scores + i * columns * size,
           *line = buffers.score_grads + i * columns * size;
      int64_t seen = shapes.seen(first + i, at, columns);
      auto rest = static_cast<size_t>((columns - seen) * size);
      std::memset(score + seen * size, 0, rest);
      std::memset(line + seen * size, 0, rest);
      if (seen == 0) continue;
      use.exp_scaled[kind](score, statistic(lse, statistics + i), 1, score, seen);
      use.softmax_backward[0][kind](score, line, products[statistics + i], line, seen);
    }
  }
};

int attention_backward(Stream& stream, Attention options, const View& q, const View& k,
                       const View& v, const View& out, const View& lse, const View& grad,
                       const View& dq, const View& dk, const View& dv) {
  if (!is_float(q.dtype)) return kUnsupported;
  AttentionShapes shapes(options, q, k);
  int64_t heads = shapes.batch * shapes.heads, groups = shapes.batch * shapes.groups;
  int64_t query_blocks = shapes.query_blocks(), key_blocks = shapes.key_blocks();
  int64_t work = heads * shapes.queries * shapes.keys * shapes.d;
  double* products = stream.scratch.take<double>(heads * shapes.queries);
  Scratch before = stream.scratch;
  AttentionParts by_query(stream, shapes, heads * query_blocks, work);
  size_t used = stream.scratch.used;
  stream.scratch.used = before.used;  // sequential phases reuse the memory
  AttentionParts by_key(stream, shapes, groups * key_blocks, work);
  stream.scratch.used = stream.scratch.needed = std::max(used, stream.scratch.used);
  if ((products == nullptr && heads * shapes.queries > 0) || by_query.buffers == nullptr ||
      by_key.buffers == nullptr)
    return kNeedsScratch;
  int loaded = prepare_products();
  if (loaded != kDone) return loaded;
  const Loops& use = loops();
  ArithmeticType kind = shapes.kind;
  int64_t d = shapes.d, size = shapes.size, per_group = shapes.heads / shapes.groups;
  Backward pass{shapes, q, k, v, out, lse, grad, products};

  by_query.run(stream, shapes, [&](ThreadBuffers& buffers, int64_t unit) {
    int64_t first = unit % query_blocks * kQueries, head = unit / query_blocks % shapes.heads,
            batch = unit / query_blocks / shapes.heads;
    int64_t rows = std::min(kQueries, shapes.queries - first), group = shapes.group_of(head);
    int64_t statistics = (batch * shapes.heads + head) * shapes.queries + first;
    Matrix grad_rows = rows_at(grad, batch, head, first, rows, buffers.grad);
    Matrix result = rows_at(out, batch, head, first, rows, buffers.more_sums);
    for (int64_t i = 0; i < rows; i++)
      products[statistics + i] =
          use.dot[kind](row_of(grad_rows, i, size), row_of(result, i, size), d);
    Matrix query = rows_at(q, batch, head, first, rows, buffers.query);
    bool started = false;
    for (int64_t at = 0; at < shapes.keys; at += kKeys) {
      int64_t columns = std::min(kKeys, shapes.keys - at);
      if (shapes.seen(first + rows - 1, at, columns) == 0) break;
      Matrix key = rows_at(k, batch, group, at, columns, buffers.key),
             value = rows_at(v, batch, group, at, columns, buffers.value);
      pass.block(buffers, query, key, value, grad_rows, statistics, first, rows, at, columns);
      multiply(kind, {buffers.score_grads, columns, false}, key, rows, d, columns, shapes.scale,
               started ? 1 : 0, buffers.sums, d);
      started = true;
    }
    if (!started) std::memset(buffers.sums, 0, static_cast<size_t>(rows * d * size));
    store_rows(dq, batch, head, first, rows, buffers.sums);
  });

  by_key.run(stream, shapes, [&](ThreadBuffers& buffers, int64_t unit) {
    int64_t at = unit % key_blocks * kKeys, group = unit / key_blocks % shapes.groups,
            batch = unit / key_blocks / shapes.groups;
    int64_t columns = std::min(kKeys, shapes.keys - at);
    Matrix key = rows_at(k, batch, group, at, columns, buffers.key),
           value = rows_at(v, batch, group, at, columns, buffers.value);
    bool started = false;
    for (int64_t head = group * per_group; head < (group + 1) * per_group; head++) {
      for (int64_t first = 0; first < shapes.queries; first += kQueries) {
        int64_t rows = std::min(kQueries, shapes.queries - first);
        if (shapes.seen(first + rows - 1, at, columns) == 0) continue;
        Matrix query = rows_at(q, batch, head, first, rows, buffers.query),
               grad_rows = rows_at(grad, batch, head, first, rows, buffers.grad);
        pass.block(buffers, query, key, value, grad_rows,
                   (batch * shapes.heads + head) * shapes.queries + first, first, rows, at,
                   columns);
        double keep = started ? 1 : 0;
        multiply(kind, {buffers.score_grads, columns, true}, query, columns, d, rows, shapes.scale,
                 keep, buffers.sums, d);
        multiply(kind, {buffers.scores, columns, true}, grad_rows, columns, d, rows, 1, keep,
                 buffers.more_sums, d);
        started = true;
      }
    }
    if (!started) {
      std::memset(buffers.sums, 0, static_cast<size_t>(columns * d * size));
      std::memset(buffers.more_sums, 0, static_cast<size_t>(columns * d * size));
    }
    store_rows(dk, batch, group, at, columns, buffers.sums);
    store_rows(dv, batch, group, at, columns, buffers.more_sums);
  });
  return kDone;
}

int rotary(Stream& stream, const View& x, int64_t first, double theta, bool inverse,
           const View& out) {
  if (!is_float(x.dtype)) return kUnsupported;
  if (x.count() == 0) return kDone;
  int64_t rows = x.shape[2], d = x.shape[3], half = d / 2;
  ArithmeticType kind = kind_of(x.dtype);
  auto size = static_cast<int64_t>(size_of_kind(kind));
  RowParts parts(stream, rows_of(x), d, kGrainCostly * 2);
  RowBuffer from(stream.scratch, parts, x), to(stream.scratch, parts, out);
  char* angles = stream.scratch.take<char>(2 * rows * half * size);
  if (!from.fits() || !to.fits() || angles == nullptr) return kNeedsScratch;
  char* sines = angles + rows * half * size;
  parallel_for(
      stream.threads, rows, std::max<int64_t>(1, kGrainCostly / std::max<int64_t>(1, half)),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * half; i < end * half; i++) {
          double angle =
              static_cast<double>(first + i / half) *
              std::pow(theta, static_cast<double>(-2 * (i % half)) / static_cast<double>(d));
          double sine = inverse ? -std::sin(angle) : std::sin(angle);
          if (kind == kF64) {
            reinterpret_cast<double*>(angles)[i] = std::cos(angle);
            reinterpret_cast<double*>(sines)[i] = sine;
          } else {
            reinterpret_cast<float*>(angles)[i] = static_cast<float>(std::cos(angle));
            reinterpret_cast<float*>(sines)[i] = static_cast<float>(sine);
          }
        }
      });
  parts.run(stream, [&](int64_t part, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      const char* in = static_cast<const char*>(from.read(part, row));
      char* made = static_cast<char*>(to.target(part, row));
      int64_t at = row % rows * half * size;
      loops().rotate[kind](in, in + half * size, angles + at, sines + at, made, made + half * size,
                           half);
      to.write(part, row);
    }
  });
  return kDone;
}

}  // namespace

void add_attention_rows(Kernels& table) {
  table.attention = attention;
  table.attention_backward = attention_backward;
  table.rotary = rotary;
}

}  // namespace flow::cpu
