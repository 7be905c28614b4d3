// Matrix products: operands are converted to layouts that BLAS accepts, and the work is split over
// our threads by matrices of the batch, or by rows and columns of c.
#include <algorithm>
#include <climits>
#include <cstring>

#include "kernels/cpu/blas.hpp"
#include "kernels/cpu/elementwise.hpp"

namespace flow::cpu {
namespace {

// The register tile: splits of c are multiples of it.
constexpr int64_t kTile = 16;
// Bytes of c that stay in a cache for the epilogue.
constexpr int64_t kHotBytes = 4 << 20;
constexpr int64_t kHotRows = 384;
// c of f16 and bf16 is computed in f32 in blocks of this many rows and columns.
constexpr int64_t kBlockRows = 256, kBlockColumns = 1024;
constexpr int64_t kSmall = 8192, kGrainWork = 65536;

Matrix as_matrix(const View& view) {
  int last = view.rank() - 1;
  int64_t rows = view.shape[last - 1], columns = view.shape[last];
  int64_t row = view.strides[last - 1], column = view.strides[last];
  if ((columns <= 1 || column == 1) && (rows <= 1 || row >= std::max<int64_t>(columns, 1)))
    return {view.data, rows <= 1 ? std::max<int64_t>(columns, 1) : row, false};
  if ((rows <= 1 || row == 1) && (columns <= 1 || column >= std::max<int64_t>(rows, 1)))
    return {view.data, columns <= 1 ? std::max<int64_t>(rows, 1) : column, true};
  return {};
}

// An operand that BLAS reads in place, or a copy in scratch, without repeated elements.
class MatmulOperand {
 public:
  MatmulOperand(Scratch& scratch, const View& view, DType dtype) : view_(view) {
    Matrix matrix = as_matrix(view);
    bool leading_fits = matrix.leading <= INT_MAX;
    if (view.count() == 0 || (view.dtype == dtype && matrix.data != nullptr && leading_fits))
      return;
    from_ = view;
    int last = view.rank() - 1;
    for (int dim = 0; dim <= last - 2; dim++)
      if (from_.strides[dim] == 0) from_.shape[dim] = 1;
    // Keeps the memory order of a transposed one, so that the copy is contiguous.
    bool across = std::abs(view.strides[last - 1]) < std::abs(view.strides[last]);
    if (across) from_ = swap_dims(from_, last - 1, last);
    copy_ = dense(dtype, from_.shape,
                  scratch.take<char>(static_cast<int64_t>(
                      from_.shape.count() * static_cast<int64_t>(dtype_size(dtype)))));
    copies_ = true;
    fits_ = copy_.data != nullptr;
    View as_view = across ? swap_dims(copy_, last - 1, last) : copy_;
    as_view.shape = view.shape;
    for (int dim = 0; dim <= last - 2; dim++)
      if (view.strides[dim] == 0) as_view.strides[dim] = 0;
    view_ = as_view;
  }
  bool fits() const { return fits_; }
  void prepare(Stream& stream) const {
    if (copies_) copy_elements(stream, from_, copy_);
  }
  const View& view() const { return view_; }

 private:
  View view_, from_, copy_;
  bool copies_ = false, fits_ = true;
};

struct Epilogue {
  const void* bias = nullptr;  // [n] in the compute type
  Unary activation = Unary::identity;
  bool is_needed() const { return bias != nullptr || activation != Unary::identity; }

  void apply(ArithmeticType kind, void* c, int64_t c_row, int64_t first_column, int64_t rows,
             int64_t columns) const {
    if (!is_needed()) return;
    const Loops& use = loops();
    auto size = static_cast<int64_t>(size_of_kind(kind));
    for (int64_t i = 0; i < rows; i++) {
      char* row = static_cast<char*>(c) + i * c_row * size;
      if (bias != nullptr)
        use.binary[static_cast<int>(Binary::add)][kind](
            row, static_cast<const char*>(bias) + first_column * size, row, columns);
      if (activation != Unary::identity)
        use.unary[static_cast<int>(activation)][kind](row, row, columns);
    }
  }
};

// Merges dimensions of the batch into rows of one larger matrix: a [batch, m, k] with one b.
void fold_batch(View& a, View& b, View& c) {
  while (c.rank() > 2) {
    int batch = c.rank() - 3, row = c.rank() - 2;
    int64_t m = c.shape[row];
    bool one = c.shape[batch] == 1;
    if (!one && (b.strides[batch] != 0 || a.strides[batch] != m * a.strides[row] ||
                 c.strides[batch] != m * c.strides[row]))
      return;
    int64_t rows = m * c.shape[batch];
    for (View* view : {&a, &b, &c}) {
      for (int dim = batch; dim < view->rank() - 1; dim++) {
        view->shape[dim] = view->shape[dim + 1];
        view->strides[dim] = view->strides[dim + 1];
      }
      view->shape.rank--;
    }
    a.shape[batch] = c.shape[batch] = rows;
  }
}

struct Product {
  ArithmeticType kind;
  View a, b, c;
  int64_t m, n, k, batch;
  double alpha, beta;
  Epilogue epilogue;
  bool direct;  // c is of the compute type, and BLAS can write its rows in place

  // Rows and columns [row, row_end) x [column, column_end) of one c.
  void part(int64_t matrix, int64_t row, int64_t row_end, int64_t column, int64_t column_end,
            char* room) const {
    auto size = static_cast<int64_t>(size_of_kind(kind));
    int last = c.rank() - 1;
    Matrix left = as_matrix(a), right = as_matrix(b);
    const char* from = row_at(a, matrix, 2);
    const char* other =
        row_at(b, matrix, 2) + column * (right.transposed ? right.leading : 1) * size;
    right.data = other;
    int64_t c_row = c.strides[last - 1];
    char* to = row_at(c, matrix, 2);
    auto c_size = static_cast<int64_t>(dtype_size(c.dtype));
    int64_t height = row_end - row, width = column_end - column;
    if (direct) {
      if (epilogue.is_needed() && height > kHotRows)
        height =
            std::min(height, std::max(kHotRows, kHotBytes / std::max<int64_t>(1, width * size)));
    } else {
      height = std::min(height, kBlockRows);
      width = std::min(width, kBlockColumns);
    }
    for (int64_t i = row; i < row_end; i += height) {
      int64_t rows = std::min(height, row_end - i);
      left.data = from + i * (left.transposed ? 1 : left.leading) * size;
      if (direct) {
        char* at = to + (i * c_row + column) * size;
        multiply(kind, left, right, rows, width, k, alpha, beta, at, leading_of(c_row));
        epilogue.apply(kind, at, c_row, column, rows, width);
        continue;
      }
      for (int64_t j = column; j < column_end; j += width) {
        int64_t columns = std::min(width, column_end - j);
        right.data = other + (j - column) * (right.transposed ? right.leading : 1) * size;
        char* at = to + (i * c_row + j) * c_size;
        for (int64_t r = 0; r < rows && beta != 0; r++) {
          char* line = room + r * columns * size;
          const void* old = load_converted(c.dtype, at + r * c_row * c_size, 1, columns, line);
          if (old != line) std::memcpy(line, old, static_cast<size_t>(columns * size));
        }
        multiply(kind, left, right, rows, columns, k, alpha, beta, room, columns);
        epilogue.apply(kind, room, columns, j, rows, columns);
        for (int64_t r = 0; r < rows; r++)
          store_converted(c.dtype, room + r * columns * size, at + r * c_row * c_size, 1, columns);
      }
    }
  }

  int64_t leading_of(int64_t c_row) const { return m <= 1 ? std::max<int64_t>(n, 1) : c_row; }
};

// How c is split among the threads: as square as possible, because each part packs its rows of a
// and columns of b.
struct Cuts {
  int64_t rows = 1, columns = 1;
};
Cuts cuts_of(int64_t threads, int64_t m, int64_t n) {
  Cuts best;
  double best_cost = 0;
  for (int64_t rows = 1; rows <= threads; rows++) {
    if (threads % rows != 0) continue;
    int64_t columns = threads / rows;
    if ((rows > 1 && m < rows * kTile) || (columns > 1 && n < columns * kTile)) continue;
    double cost = static_cast<double>(m) / static_cast<double>(rows) +
                  static_cast<double>(n) / static_cast<double>(columns);
    if (best_cost == 0 || cost < best_cost) {
      best_cost = cost;
      best = {rows, columns};
    }
  }
  return best;
}

int64_t cut_at(int64_t size, int64_t cuts, int64_t i) {
  if (i == cuts) return size;
  return std::min(size, (size * i / cuts + kTile / 2) / kTile * kTile);
}

int matmul(Stream& stream, const View& a, const View& b, double alpha, double beta,
           const View* bias, Unary activation, const View& c) {
  if (!is_float(c.dtype)) return kUnsupported;
  ArithmeticType kind = kind_of(c.dtype);
  DType compute = kind == kF64 ? DType::f64 : DType::f32;
  Product product{};
  product.kind = kind;
  View left = a, right = b;
  product.c = c;
  fold_batch(left, right, product.c);
  int last = product.c.rank() - 1;
  int64_t m = product.c.shape[last - 1], n = product.c.shape[last], k = left.shape[last];
  if (std::max({m, n, k}) > INT_MAX) return kUnsupported;
  product.m = m, product.n = n, product.k = k;
  product.batch = rows_of(product.c, 2);
  product.alpha = alpha, product.beta = beta;
  if (product.c.count() == 0) return kDone;
  product.direct =
      !is_small(c.dtype) &&
      (m <= 1 || (product.c.strides[last - 1] >= n && product.c.strides[last - 1] <= INT_MAX));

  Scratch& scratch = stream.scratch;
  MatmulOperand from(scratch, left, compute), other(scratch, right, compute);
  void* bias_room = nullptr;
  if (bias != nullptr) bias_room = scratch.take<double>(n);
  bool own = m * n * k <= kSmall;
  int64_t threads = std::max(stream.threads, 1);
  int64_t work = std::max<int64_t>(1, m * n * std::max<int64_t>(k, 1));
  int64_t parts = std::min(threads, std::max<int64_t>(1, product.batch * work / kGrainWork));
  auto size = static_cast<int64_t>(size_of_kind(kind));
  int64_t room_size =
      product.direct ? 0 : std::min(m, kBlockRows) * std::min(n, kBlockColumns) * size;
  char* room = product.direct ? nullptr : scratch.take<char>(parts * room_size);
  if (!from.fits() || !other.fits() || (bias != nullptr && bias_room == nullptr) ||
      (!product.direct && room == nullptr))
    return kNeedsScratch;
  if (!own) {
    int loaded = prepare_products();
    if (loaded != kDone) return loaded;
  }
  if (k > 0) {
    from.prepare(stream);
    other.prepare(stream);
  }
  product.a = from.view();
  product.b = other.view();
  product.epilogue.activation = activation;
  if (bias != nullptr) {
    if (kind_of(bias->dtype) == kind) {
      product.epilogue.bias =
          load_converted(bias->dtype, bias->data, bias->strides[0], n, bias_room);
    } else {
      copy_elements(stream, *bias, dense(compute, {n}, bias_room));
      product.epilogue.bias = bias_room;
    }
  }

  Cuts cuts;
  bool by_batch = product.batch % parts == 0 || product.batch >= 4 * parts;
  if (!by_batch) cuts = cuts_of(parts, m, n);
  int64_t pieces = product.batch * cuts.rows * cuts.columns;
  parts = std::min(parts, pieces);
  parallel_for(stream.threads, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; part++) {
      char* part_room = room + part * room_size;
      for (int64_t i = pieces * part / parts; i < pieces * (part + 1) / parts; i++) {
        int64_t column = i % cuts.columns, row = i / cuts.columns % cuts.rows;
        product.part(i / cuts.columns / cuts.rows, cut_at(m, cuts.rows, row),
                     cut_at(m, cuts.rows, row + 1), cut_at(n, cuts.columns, column),
                     cut_at(n, cuts.columns, column + 1), part_room);
      }
    }
  });
  return kDone;
}

// Each part is the function of the table that computes it alone.
int product(Stream& stream, const View& a, const View& b, const ProductEpilogue& e, const View& c) {
  const Kernels& table = cpu_kernels();
  bool is_stored = e.before != nullptr && !e.is_gradient;
  View sums = is_stored ? *e.before : c;
  Unary at_once = is_stored || e.is_gradient ? Unary::identity : e.activation;
  auto then = [&](int code, auto next) {
    if (code != kDone) return code;
    stream.scratch.used = 0;
    return next();
  };
  int code = matmul(stream, a, b, 1, 0, e.bias, at_once, sums);
  if (is_stored) code = then(code, [&] { return table.unary(stream, e.activation, *e.before, c); });
  if (e.is_gradient)
    code = then(code, [&] {
      return table.unary_backward(stream, e.activation, *e.before, *e.before, c, c);
    });
  if (e.column_sums != nullptr)
    code = then(code, [&] {
      return table.reduce(stream, Reduce::sum, swap_dims(c, 0, 1), 0, *e.column_sums);
    });
  if (e.row_sums != nullptr)
    code = then(code, [&] { return table.reduce(stream, Reduce::sum, a, 0, *e.row_sums); });
  return code;
}

}  // namespace

void add_matmul_rows(Kernels& table) {
  table.matmul = matmul;
  table.product = product;
}

}  // namespace flow::cpu
