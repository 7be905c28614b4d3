// Operations on tensors: they check and broadcast shapes, convert types, call the device's
// function, and record the backward. Names and meaning are PyTorch's; dimensions count from 0,
// indices from `base`. A result is a new tensor; functions named …_in_place change their first
// operand. Invalid operands throw a Failure.
#pragma once
#include <optional>
#include <vector>

#include "kernels/shared/ops.hpp"
#include "kernels/tensor/tensor.hpp"

namespace flow::tensors {

class GraphWords;

using kernels::Binary;
using kernels::Compare;
using kernels::Reduce;
using kernels::Unary;

// ---- elements (elementwise.cc)
/// The common type: floats win over integers, wide over narrow; f16 and bf16 give f32.
DType common_type(DType a, DType b);
/// The type of `tensor op number`: the tensor's, but a fraction makes integers f32.
DType type_with(DType tensor, const Number& number);
/// Converts `number` for a tensor of `dtype`; a number out of an integer type's range throws a
/// Failure. Fractions are truncated.
Number checked(const Number& number, DType dtype);
/// Throws a Failure unless all are on one device; some may be empty.
void check_together(const char* name, std::initializer_list<Tensor> operands);
/// "add", "take the maximum of": for messages.
const char* verb_of(Binary op);
Tensor unary(Unary op, const Tensor& x);
Tensor binary(Binary op, const Tensor& a, const Tensor& b);
/// b op a if `reversed`.
Tensor binary(Binary op, const Tensor& a, const Number& b, bool reversed = false);
Tensor compare(Compare op, const Tensor& a, const Tensor& b);
Tensor compare(Compare op, const Tensor& a, const Number& b);
/// a and b have one type and shape (broadcast); `condition` is bool.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor clamp(const Tensor& x, const Number& low, const Number& high);
Tensor add_product(const Tensor& a, const Tensor& b, const Tensor& c, double factor);
Tensor add_quotient(const Tensor& a, const Tensor& b, const Tensor& c, double factor);
Tensor lerp(const Tensor& a, const Tensor& b, double weight);
/// Zeros each element with probability p and divides the rest by 1 - p.
Tensor dropout(const Tensor& x, double p, kernels::Seed seed);

// ---- in place; the result's shape is the target's (elementwise.cc)
/// Throws a Failure if `source` has a history, which a write into a plain tensor would lose.
void reject_tracked(const Tensor& source);
void copy_in_place(const Tensor& target, const Tensor& source);  // casts and broadcasts
void fill_in_place(const Tensor& target, const Number& value);
void add_in_place(const Tensor& target, const Tensor& term,
                  const Number& factor = Number::of(int64_t{1}));
void binary_in_place(Binary op, const Tensor& target, const Tensor& b);
void binary_in_place(Binary op, const Tensor& target, const Number& b);
void unary_in_place(Unary op, const Tensor& target);

// ---- shapes (shapes.cc). All but cast, copy_of, cat and stack are views where strides allow.
Tensor cast(const Tensor& x, DType dtype);
Tensor move(const Tensor& x, const Device& device);
Tensor copy_of(const Tensor& x);     // dense
Tensor contiguous(const Tensor& x);  // the tensor itself if it is dense
Tensor reshape(const Tensor& x, const Shape& shape);
Tensor permute(const Tensor& x, const int* order);
Tensor swap_dims(const Tensor& x, int a, int b);
Tensor narrow(const Tensor& x, int dim, int64_t first, int64_t length, int64_t step = 1);
Tensor select(const Tensor& x, int dim, int64_t index);
Tensor squeeze(const Tensor& x, int dim);  // removes a dimension of size 1
Tensor unsqueeze(const Tensor& x, int dim);
Tensor expand(const Tensor& x, const Shape& shape);
Tensor cat(const std::vector<Tensor>& parts, int dim);
Tensor stack(const std::vector<Tensor>& parts, int dim);
/// `x` summed over the dimensions broadcast from `shape`: the gradient of broadcasting.
Tensor sum_to(const Tensor& x, const Shape& shape);

// ---- many to one (reductions.cc). `dims` are distinct; `keep` leaves them as size 1.
using Dims = std::vector<int>;
Dims all_dims(const Tensor& x);
/// sum, mean, product, norm, any, all; floats keep their type, integers and bool sum to i64.
Tensor reduce(Reduce op, const Tensor& x, const Dims& dims, bool keep = false);
Tensor variance(const Tensor& x, const Dims& dims, double correction, bool keep = false);
Tensor deviation(const Tensor& x, const Dims& dims, double correction, bool keep);  // its root
/// max and min over several dimensions, without positions.
Tensor extreme_of(bool largest, const Tensor& x, const Dims& dims, bool keep = false);
struct Extreme {
  Tensor value, index;  // i64
};
Extreme extreme(bool largest, const Tensor& x, int dim, int64_t base, bool keep = false);
Tensor cumsum(const Tensor& x, int dim);

// ---- products (matmul.cc)
/// [m, k] [k, n], [k] [k], [m, k] [k], [k] [k, n], with leading batch dimensions, broadcast.
Tensor matmul(const Tensor& a, const Tensor& b);
/// activation(x[…, in] weight[out, in]ᵀ + bias[out]); `bias` may be empty, and the activation is
/// identity, relu, gelu or gelu_tanh.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              Unary activation = Unary::identity);

// ---- networks (nn_ops.cc)
Tensor softmax(const Tensor& x, int dim, bool logarithm);
enum class Reduction : uint8_t { none, mean, sum };
/// logits [n, classes] and labels [n] (integers from `base`); a label equal to `ignore` is not
/// counted. The loss is f32, or f64 for f64.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, int64_t base, int64_t ignore,
                     Reduction reduction);
/// Over the last dimension; weight and bias [c] may be empty. `for_product`: with mixed precision,
/// the result of f32 is rounded as the operand of a product is.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                  bool for_product = false);
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, bool for_product = false);
/// x + term, and the norm of it: the same as by two operations, in one pass where that is possible.
struct SumAndNorm {
  Tensor sum, norm;
};
SumAndNorm add_layer_norm(const Tensor& x, const Tensor& term, const Tensor& weight,
                          const Tensor& bias, double eps, bool for_product = false);
SumAndNorm add_rms_norm(const Tensor& x, const Tensor& term, const Tensor& weight, double eps,
                        bool for_product = false);
/// table [rows, width], index of any shape: […, width].
Tensor embedding(const Tensor& table, const Tensor& index, int64_t base);
/// q [b, h, t, d], k and v [b, g, s, d]. `scale` is 1/sqrt(d) if it is empty.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                 std::optional<double> scale);
/// The same for packed projections [b, t, (heads + 2 groups) * d]: first the queries' heads, then
/// the keys', then the values'. The result is [b, t, heads * d]; nothing is copied.
Tensor self_attention(const Tensor& packed, int64_t heads, int64_t groups, bool causal,
                      std::optional<double> scale);
Tensor rotary(const Tensor& x, int64_t first, double theta);
/// Along `dim`: out[i][j] = x[index[i][j]][j] for dim 0.
Tensor gather(const Tensor& x, int dim, const Tensor& index, int64_t base);
/// Adds the source at the positions of the index: the gradient of gather.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                   int64_t base);
/// Selects rows (or slices along `dim`) by a tensor of one dimension.
Tensor index_select(const Tensor& x, int dim, const Tensor& index, int64_t base);
/// Throws a Failure for the first index outside base..base + limit - 1. On the CPU only; on a GPU
/// the kernel stores it and wait_for() throws.
void check_indices(const Tensor& index, int64_t base, int64_t limit, const char* what);

// ---- pictures (conv_pool.cc)
/// x [n, c, h, w], weight [outputs, c / groups, kh, kw], bias [outputs] or empty.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const kernels::Conv2d& options);
Tensor max_pool2d(const Tensor& x, const kernels::Pool2d& options);
Tensor avg_pool2d(const Tensor& x, const kernels::Pool2d& options);
/// [n, c, h, w] to [n, c, height, width].
Tensor resize(const Tensor& x, int64_t height, int64_t width, bool bilinear);
/// [n, h, w, c] u8 to [n, c, h, w] f32.
Tensor normalize(const Tensor& x, const Tensor& mean, const Tensor& deviation);

// ---- choosing (topk_sampling.cc); these have no gradient but top_k's values
struct TopK {
  Tensor values, index;
};
TopK top_k(const Tensor& x, int64_t k, int64_t base);  // along the last dimension
Tensor sample(const Tensor& logits, double temperature, kernels::Seed seed, int64_t base);
Tensor histogram(const Tensor& x, int64_t bins, double low, double high);

// ---- numbers (topk_sampling.cc)
Tensor uniform(DType dtype, const Shape& shape, kernels::Seed seed, double low, double high,
               const Device& device = {});
Tensor normal(DType dtype, const Shape& shape, kernels::Seed seed, double mean, double deviation,
              const Device& device = {});
Tensor integers(DType dtype, const Shape& shape, kernels::Seed seed, int64_t low, int64_t high,
                const Device& device = {});
/// 0..count - 1 in a random order of the seed.
void fill_permutation(int64_t* out, int64_t count, uint64_t seed);
Tensor gbm(const kernels::Gbm& options, int64_t paths, bool ends_only, DType dtype,
           const Device& device = {});

// ---- optimizers (optimizers.cc): one step, in place
void adamw_step(const kernels::AdamW& options, const Tensor& weights, const Tensor& grad,
                double grad_scale, const Tensor& mean, const Tensor& square);
struct AdamWOperands {
  Tensor weights, grad, mean, square;
  int64_t step = 1;
};
/// The same for several tensors in as few calls as possible, one per device; `factor` is empty, or
/// an f64 on their device by which the gradients are multiplied too. If it is recorded, returns the
/// first of the graph's words for set_adamw_rates().
size_t adamw_steps(const kernels::AdamW& options, const std::vector<AdamWOperands>& tensors,
                   double grad_scale, const Tensor& factor);
/// Before a launch of the graph: the rates of `options`, with the steps of the same tensors.
void set_adamw_rates(GraphWords& words, size_t first, const kernels::AdamW& options,
                     const std::vector<int64_t>& steps);
void sgd_step(const kernels::Sgd& options, const Tensor& weights, const Tensor& grad,
              double grad_scale, const Tensor& momentum);
/// The Euclidean norm of all elements of all tensors; if it is larger than `limit`, each tensor is
/// scaled down, as in torch.nn.utils.clip_grad_norm_. Returns the norm before.
double clip_norm(const std::vector<Tensor>& tensors, double limit);
/// The same without waiting, for dense tensors on one GPU: the norm, an f64 there. Empty, and
/// nothing done, for others.
Tensor clip_norm_on_gpu(const std::vector<Tensor>& tensors, double limit);
/// The norm and the factor by which clip_norm would multiply, two f64 on the tensors' device.
Tensor norm_and_factor(const std::vector<Tensor>& tensors, double limit);

// ---- reading
/// The only element.
double item_of(const Tensor& x);
int64_t integer_of(const Tensor& x);

}  // namespace flow::tensors
