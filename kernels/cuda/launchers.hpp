// The functions of kernels/table.hpp that this folder implements; table.cc assembles them.
#pragma once
#include "kernels/table.hpp"

namespace flow::cuda {

using namespace kernels;

// elementwise.cu
int copy(Stream&, const View& from, const View& to);
int fill(Stream&, const View& out, Number value);
int unary(Stream&, Unary, const View& in, const View& out);
int unary_backward(Stream&, Unary, const View& in, const View& y, const View& grad,
                   const View& out);
int binary(Stream&, Binary, const View& a, const View& b, const View& out);
int binary_number(Stream&, Binary, const View& a, Number b, bool reversed, const View& out);
int compare(Stream&, Compare, const View& a, const View& b, const View& out);
int compare_number(Stream&, Compare, const View& a, Number b, const View& out);
int where(Stream&, const View& condition, const View& a, const View& b, const View& out);
int clamp(Stream&, const View& in, Number low, Number high, const View& out);
int add_product(Stream&, const View& a, const View& b, const View& c, double factor,
                const View& out);
int add_quotient(Stream&, const View& a, const View& b, const View& c, double factor,
                 const View& out);
int lerp(Stream&, const View& a, const View& b, double weight, const View& out);
int dropout(Stream&, const View& in, double p, Seed seed, uint64_t first, const View& out);

// fused_elementwise.cu
int fused_elementwise(Stream&, const FusedElementwise&, const View* inputs, const View& out);

// reductions.cu
int reduce(Stream&, Reduce, const View& in, double correction, const View& out);
int extreme(Stream&, bool largest, const View& in, int64_t base, const View& value,
            const View& index);
int cumsum(Stream&, const View& in, const View& out);

// rows.cu
int softmax(Stream&, bool logarithm, const View& in, const View& out);
int softmax_backward(Stream&, bool logarithm, const View& y, const View& grad, const View& out);
int cross_entropy(Stream&, const View& logits, const View& labels, int64_t base, int64_t ignore,
                  const View& loss, const View& lse);
int cross_entropy_backward(Stream&, const View& logits, const View& labels, int64_t base,
                           int64_t ignore, const View& lse, const View& grad, const View& out);

// norms.cu
int layer_norm(Stream&, const View& x, const View* weight, const View* bias, double eps,
               const View& y, const View& mean, const View& rstd);
int layer_norm_backward(Stream&, const View& x, const View* weight, const View& mean,
                        const View& rstd, const View& grad, const View& dx, const View* dweight,
                        const View* dbias, bool adds);
int rms_norm(Stream&, const View& x, const View* weight, double eps, const View& y,
             const View& rstd);
int rms_norm_backward(Stream&, const View& x, const View* weight, const View& rstd,
                      const View& grad, const View& dx, const View* dweight, bool adds);
int add_norm(Stream&, const View& x, const View& term, const View* weight, const View* bias,
             double eps, const View& sum, const View& y, const View* mean, const View& rstd);

// matmul.cu
int matmul(Stream&, const View& a, const View& b, double alpha, double beta, const View* bias,
           Unary activation, const View& c);
int product(Stream&, const View& a, const View& b, const ProductEpilogue&, const View& c);

// indices.cu
int gather_rows(Stream&, const View& table, const View& index, int64_t base, const View& out);
int scatter_add_rows(Stream&, const View& grad, const View& index, int64_t base, const View& out);
int gather_last(Stream&, const View& in, const View& index, int64_t base, const View& out);
int scatter_add_last(Stream&, const View& grad, const View& index, int64_t base, const View& out);

// attention.cu
int attention(Stream&, Attention, const View& q, const View& k, const View& v, const View& out,
              const View& lse);
int attention_backward(Stream&, Attention, const View& q, const View& k, const View& v,
                       const View& out, const View& lse, const View& grad, const View& dq,
                       const View& dk, const View& dv);
int rotary(Stream&, const View& x, int64_t first, double theta, bool inverse, const View& out);

// conv_pool.cu
int conv2d(Stream&, const Conv2d&, const View& x, const View& w, const View* bias, const View& out);
int conv2d_backward_input(Stream&, const Conv2d&, const View& grad, const View& w, const View& dx);
int conv2d_backward_weight(Stream&, const Conv2d&, const View& grad, const View& x, const View& dw);
int max_pool2d(Stream&, const Pool2d&, const View& x, const View& out, const View& index);
int max_pool2d_backward(Stream&, const View& grad, const View& index, const View& dx);
int avg_pool2d(Stream&, const Pool2d&, const View& x, const View& out);
int avg_pool2d_backward(Stream&, const Pool2d&, const View& grad, const View& dx);
int resize(Stream&, bool bilinear, const View& in, const View& out);
int resize_backward(Stream&, bool bilinear, const View& grad, const View& out);
int normalize(Stream&, const View& in, const View& mean, const View& deviation, const View& out);

// optimizers.cu
int adamw(Stream&, const AdamW&, const View& weights, const View& grad, double grad_scale,
          const View& mean, const View& square, const View* copy);
int adamw_all(Stream&, const AdamW&, const AdamWTensor* tensors, int64_t count, double grad_scale,
              const View* factor);
int sgd(Stream&, const Sgd&, const View& weights, const View& grad, double grad_scale,
        const View* momentum, const View* copy);
int add_sum_of_squares(Stream&, const View& in, const View& out);
int norm_of_all(Stream&, const View* tensors, int64_t count, double limit, const View& out);
int scale_all(Stream&, const View* tensors, int64_t count, const View& factor);

// topk_sampling.cu
int top_k(Stream&, const View& in, int64_t base, const View& values, const View& index);
int sample(Stream&, const View& logits, double temperature, Seed seed, uint64_t first, int64_t base,
           const View& index);
int histogram(Stream&, const View& in, double low, double high, const View& counts);

// random.cu
int uniform(Stream&, const View& out, Seed seed, uint64_t first, double low, double high);
int normal(Stream&, const View& out, Seed seed, uint64_t first, double mean, double deviation);
int integers(Stream&, const View& out, Seed seed, uint64_t first, int64_t low, int64_t high);
int bernoulli(Stream&, const View& out, Seed seed, uint64_t first, double p);

// finance.cu
int gbm_paths(Stream&, const Gbm&, const View& out);
int gbm_ends(Stream&, const Gbm&, const View& out);

}  // namespace flow::cuda
