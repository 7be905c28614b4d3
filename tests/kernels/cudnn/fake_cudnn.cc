// A fake libcudnn.so.9 (fake_cudnn_graph.cc: graphs of operations): convolutions by their
// definition in host memory. It is as strict as cuDNN: it rejects descriptors that do not match, a
// workspace that is too small, unaligned addresses, f32 on tensor cores and algorithms that add in
// an arbitrary order, and names the first defect in `fake_cudnn.complaint`.
#include "tests/kernels/cudnn/fake_cudnn.hpp"

#include <cstring>
#include <vector>

#include "kernels/cuda/cudnn_calls.hpp"
#include "kernels/shared/types.hpp"

using namespace flow::kernels;
using flow::cuda::dnn::AlgorithmPerf;
namespace dnn = flow::cuda::dnn;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT flow::FakeCudnn fake_cudnn;
flow::FakeCudnn fake_cudnn;

namespace {

constexpr int kBadParameter = 2000;
constexpr uint64_t kAlive = 0x616c697665;

// A handle or descriptor; cuDNN's are opaque too.
struct Thing {
  uint64_t mark = kAlive;
  char kind;
  bool is_set = false;
  int type = -1, shape[4] = {};
  int padding[2] = {}, stride[2] = {}, dilation[2] = {}, groups = 1, compute = -1, math = 0;
};

int complain(const char* what) {
  if (fake_cudnn.complaint == nullptr) fake_cudnn.complaint = what;
  return kBadParameter;
}

}  // namespace

bool is_fake_handle(void* pointer) {
  auto* thing = static_cast<Thing*>(pointer);
  return thing != nullptr && thing->mark == kAlive && thing->kind == 'h';
}

namespace {

int make(void** to, char kind) {
  auto* thing = new Thing;
  thing->kind = kind;
  *to = thing;
  fake_cudnn.alive++;
  return 0;
}
Thing* thing_of(void* pointer, char kind) {
  auto* thing = static_cast<Thing*>(pointer);
  if (thing == nullptr || thing->mark != kAlive || thing->kind != kind) {
    complain("another descriptor was due here");
    return nullptr;
  }
  return thing;
}
int end(void* pointer, char kind) {
  Thing* thing = thing_of(pointer, kind);
  if (thing == nullptr) return kBadParameter;
  thing->mark = 0;
  delete thing;
  fake_cudnn.alive--;
  return 0;
}

int set_shape(void* pointer, char kind, int format, int type, int a, int b, int c, int d) {
  Thing* thing = thing_of(pointer, kind);
  if (thing == nullptr) return kBadParameter;
  if (format != dnn::kNchw) return complain("the pictures lie as [n, c, h, w]");
  if (a < 1 || b < 1 || c < 1 || d < 1) return complain("a size below 1");
  thing->is_set = true;
  thing->type = type;
  int shape[] = {a, b, c, d};
  std::memcpy(thing->shape, shape, sizeof shape);
  return 0;
}

// The four matching descriptors of a convolution.
struct Window {
  Thing *x, *w, *y, *o;
};
int window_of(void* x, void* w, void* conv, void* y, Window& to) {
  Window v{thing_of(x, 't'), thing_of(w, 'f'), thing_of(y, 't'), thing_of(conv, 'c')};
  if (!v.x || !v.w || !v.y || !v.o) return kBadParameter;
  if (!v.x->is_set || !v.w->is_set || !v.y->is_set || !v.o->is_set)
    return complain("a descriptor without numbers");
  if (v.x->type != v.w->type || v.x->type != v.y->type) return complain("operands of other types");
  bool is_wide = v.x->type == dnn::kDouble;
  if (v.o->compute != (is_wide ? dnn::kDouble : dnn::kFloat))
    return complain("the type that is computed in");
  bool is_half = v.x->type == dnn::kHalf || v.x->type == dnn::kBfloat16;
  if (!is_half && !fake_cudnn.takes_tf32 && v.o->math != dnn::kFmaMath)
    return complain("f32 must be f32, not TF32");
  if (v.x->shape[1] != v.w->shape[1] * v.o->groups || v.w->shape[0] % v.o->groups != 0)
    return complain("channels and groups");
  if (v.y->shape[0] != v.x->shape[0] || v.y->shape[1] != v.w->shape[0])
    return complain("the result's pictures or channels");
  for (int i = 0; i < 2; i++) {
    int reach = v.o->dilation[i] * (v.w->shape[2 + i] - 1) + 1;
    int size = (v.x->shape[2 + i] + 2 * v.o->padding[i] - reach) / v.o->stride[i] + 1;
    if (v.y->shape[2 + i] != size) return complain("the result's size");
  }
  to = v;
  return 0;
}

int offer(const std::vector<AlgorithmPerf>& all, int room, int* count, AlgorithmPerf* to) {
  fake_cudnn.heuristics++;
  *count = 0;
  if (fake_cudnn.offers_status != 0) return fake_cudnn.offers_status;
  for (const AlgorithmPerf& each : all)
    if (*count < room && (!fake_cudnn.only_random || each.determinism == 0)) to[(*count)++] = each;
  return 0;
}

// Lists the algorithms that must not be chosen first.
AlgorithmPerf offer_of(int algorithm, bool is_same_each_time, int math, int status = 0) {
  return {algorithm, status, 1, fake_cudnn.workspace, is_same_each_time ? 1 : 0, math, {}};
}

size_t room_of(int algorithm) {
  return algorithm == dnn::kForwardImplicitGemm ? 0 : fake_cudnn.workspace;
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

struct Factors {
  const void *alpha, *beta;
};
double factor(const Thing& x, const void* at) {
  return x.type == dnn::kDouble ? *static_cast<const double*>(at)
                                : static_cast<double>(*static_cast<const float*>(at));
}

int check_run(void* handle, const Window& v, const Factors& factors, const void* a, const void* b,
              const void* result, bool is_allowed, int algorithm, void* room, size_t bytes) {
  if (thing_of(handle, 'h') == nullptr) return kBadParameter;
  if (!is_allowed) return complain("an algorithm that does not give the same bits each time");
  if (factor(*v.x, factors.alpha) != 1 || factor(*v.x, factors.beta) != 0)
    return complain("what it is multiplied with");
  if (!is_aligned(a) || !is_aligned(b) || !is_aligned(result) || !is_aligned(room))
    return complain("an address that is no multiple of 16");
  if (bytes < room_of(algorithm) || (bytes > 0 && room == nullptr))
    return complain("too little room");
  if (fake_cudnn.run_status != 0) return fake_cudnn.run_status;
  if (bytes > 0) std::memset(room, 0xee, bytes);  // shows a write outside of the workspace
  fake_cudnn.algorithm = algorithm;
  fake_cudnn.math = v.o->math;
  return 0;
}

// Calls f(index in x, in w, in y) for each product of a convolution.
template <typename F>
void for_products(const Window& v, F f) {
  const int *x = v.x->shape, *w = v.w->shape, *y = v.y->shape;
  int outputs = w[0] / v.o->groups;
  for (int64_t n = 0; n < y[0]; n++)
    for (int64_t k = 0; k < y[1]; k++)
      for (int64_t oy = 0; oy < y[2]; oy++)
        for (int64_t ox = 0; ox < y[3]; ox++)
          for (int64_t c = 0; c < w[1]; c++)
            for (int64_t ky = 0; ky < w[2]; ky++)
              for (int64_t kx = 0; kx < w[3]; kx++) {
                int64_t row = oy * v.o->stride[0] - v.o->padding[0] + ky * v.o->dilation[0];
                int64_t column = ox * v.o->stride[1] - v.o->padding[1] + kx * v.o->dilation[1];
                if (row < 0 || row >= x[2] || column < 0 || column >= x[3]) continue;
                int64_t channel = k / outputs * w[1] + c;
                f(((n * x[1] + channel) * x[2] + row) * x[3] + column,
                  ((k * w[1] + c) * w[2] + ky) * w[3] + kx,
                  ((n * y[1] + k) * y[2] + oy) * y[3] + ox);
              }
}

template <typename F>
void with_type(int type, F f) {
  switch (type) {
    case dnn::kDouble:
      return f(double{});
    case dnn::kHalf:
      return f(Half{});
    case dnn::kBfloat16:
      return f(Brain{});
    default:
      return f(float{});
  }
}

// Sums in double, rounded once.
template <typename Each>
void sum_to(const Thing& result, void* data, const std::vector<double>& first, Each each) {
  with_type(result.type, [&](auto type) {
    using T = decltype(type);
    std::vector<double> sums = first;
    sums.resize(static_cast<size_t>(int64_t{result.shape[0]} * result.shape[1] * result.shape[2] *
                                    result.shape[3]));
    each(sums, type);
    for (size_t i = 0; i < sums.size(); i++) static_cast<T*>(data)[i] = convert<T>(sums[i]);
  });
}
template <typename T>
double value(const void* data, int64_t at) {
  return convert<double>(static_cast<const T*>(data)[at]);
}

void run_forward(const Window& v, const void* x, const void* w, const void* bias, void* y) {
  std::vector<double> first;
  int64_t plane = int64_t{v.y->shape[2]} * v.y->shape[3];
  if (bias)
    with_type(v.y->type, [&](auto type) {
      for (int64_t i = 0; i < v.y->shape[0] * v.y->shape[1] * plane; i++)
        first.push_back(value<decltype(type)>(bias, i / plane % v.y->shape[1]));
    });
  sum_to(*v.y, y, first, [&](auto& sums, auto type) {
    using T = decltype(type);
    for_products(v, [&](int64_t in, int64_t weight, int64_t out) {
      sums[static_cast<size_t>(out)] += value<T>(x, in) * value<T>(w, weight);
    });
  });
}

}  // namespace

EXPORT size_t cudnnGetVersion() { return fake_cudnn.version; }
EXPORT const char* cudnnGetErrorString(int status) {
  return status == 5000 ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_OF_THE_TESTS";
}
EXPORT int cudnnCreate(void** handle) {
  return fake_cudnn.create_status != 0 ? fake_cudnn.create_status : make(handle, 'h');
}
EXPORT int cudnnDestroy(void* handle) { return end(handle, 'h'); }
EXPORT int cudnnSetStream(void* handle, void* stream) {
  fake_cudnn.stream = stream;
  return thing_of(handle, 'h') ? 0 : kBadParameter;
}

EXPORT int cudnnCreateTensorDescriptor(void** to) { return make(to, 't'); }
EXPORT int cudnnDestroyTensorDescriptor(void* tensor) { return end(tensor, 't'); }
EXPORT int cudnnSetTensor4dDescriptor(void* tensor, int format, int type, int n, int c, int h,
                                      int w) {
  return set_shape(tensor, 't', format, type, n, c, h, w);
}
EXPORT int cudnnCreateFilterDescriptor(void** to) { return make(to, 'f'); }
EXPORT int cudnnDestroyFilterDescriptor(void* filter) { return end(filter, 'f'); }
EXPORT int cudnnSetFilter4dDescriptor(void* filter, int type, int format, int k, int c, int h,
                                      int w) {
  return set_shape(filter, 'f', format, type, k, c, h, w);
}
EXPORT int cudnnCreateConvolutionDescriptor(void** to) { return make(to, 'c'); }
EXPORT int cudnnDestroyConvolutionDescriptor(void* conv) { return end(conv, 'c'); }
EXPORT int cudnnSetConvolution2dDescriptor(void* conv, int padding_h, int padding_w, int stride_h,
                                           int stride_w, int dilation_h, int dilation_w, int mode,
                                           int compute) {
  Thing* thing = thing_of(conv, 'c');
  if (thing == nullptr) return kBadParameter;
  if (mode != dnn::kCrossCorrelation) return complain("a filter that is turned around");
  if (padding_h < 0 || padding_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 ||
      dilation_w < 1)
    return complain("a window that is none");
  thing->is_set = true;
  thing->compute = compute;
  thing->padding[0] = padding_h, thing->padding[1] = padding_w;
  thing->stride[0] = stride_h, thing->stride[1] = stride_w;
  thing->dilation[0] = dilation_h, thing->dilation[1] = dilation_w;
  return 0;
}
EXPORT int cudnnSetConvolutionGroupCount(void* conv, int groups) {
  Thing* thing = thing_of(conv, 'c');
  if (thing == nullptr || groups < 1) return complain("a number of groups");
  thing->groups = groups;
  return 0;
}
EXPORT int cudnnSetConvolutionMathType(void* conv, int math) {
  Thing* thing = thing_of(conv, 'c');
  if (thing == nullptr) return kBadParameter;
  thing->math = math;
  return 0;
}
EXPORT int cudnnCreateActivationDescriptor(void** to) { return make(to, 'a'); }
EXPORT int cudnnDestroyActivationDescriptor(void* activation) { return end(activation, 'a'); }
EXPORT int cudnnSetActivationDescriptor(void* activation, int mode, int, double) {
  Thing* thing = thing_of(activation, 'a');
  if (thing == nullptr || mode != dnn::kActivationIdentity) return complain("an activation");
  thing->is_set = true;
  return 0;
}

EXPORT int cudnnGetConvolutionForwardAlgorithm_v7(void* handle, void* x, void* w, void* conv,
                                                  void* y, int room, int* count,
                                                  AlgorithmPerf* offers) {
  Window v;
  if (!thing_of(handle, 'h') || window_of(x, w, conv, y, v)) return kBadParameter;
  int math = v.o->math;
  return offer({offer_of(7, true, math),  // Winograd
                offer_of(0, false, math),
                offer_of(1, true, dnn::kTensorOpMathAllowConversion),
                offer_of(1, true, math, dnn::kNotSupported),
                offer_of(1, true, math),
                {0, 0, 2, 0, 1, math, {}}},
               room, count, offers);
}
EXPORT int cudnnGetConvolutionBackwardDataAlgorithm_v7(void* handle, void* w, void* y, void* conv,
                                                       void* x, int room, int* count,
                                                       AlgorithmPerf* offers) {
  Window v;
  if (!thing_of(handle, 'h') || window_of(x, w, conv, y, v)) return kBadParameter;
  return offer(
      {offer_of(0, false, v.o->math), offer_of(5, true, v.o->math), offer_of(1, true, v.o->math)},
      room, count, offers);
}
EXPORT int cudnnGetConvolutionBackwardFilterAlgorithm_v7(void* handle, void* x, void* y, void* conv,
                                                         void* w, int room, int* count,
                                                         AlgorithmPerf* offers) {
  Window v;
  if (!thing_of(handle, 'h') || window_of(x, w, conv, y, v)) return kBadParameter;
  return offer(
      {offer_of(0, false, v.o->math), offer_of(3, false, v.o->math), offer_of(1, true, v.o->math)},
      room, count, offers);
}
EXPORT int cudnnGetConvolutionForwardWorkspaceSize(void*, void* x, void* w, void* conv, void* y,
                                                   int algorithm, size_t* bytes) {
  Window v;
  *bytes = room_of(algorithm);
  return window_of(x, w, conv, y, v);
}
EXPORT int cudnnGetConvolutionBackwardDataWorkspaceSize(void*, void* w, void* y, void* conv,
                                                        void* x, int algorithm, size_t* bytes) {
  Window v;
  *bytes = room_of(algorithm);
  return window_of(x, w, conv, y, v);
}
EXPORT int cudnnGetConvolutionBackwardFilterWorkspaceSize(void*, void* x, void* y, void* conv,
                                                          void* w, int algorithm, size_t* bytes) {
  Window v;
  *bytes = room_of(algorithm);
  return window_of(x, w, conv, y, v);
}

EXPORT int cudnnConvolutionForward(void* handle, const void* alpha, void* x, const void* x_data,
                                   void* w, const void* w_data, void* conv, int algorithm,
                                   void* room, size_t bytes, const void* beta, void* y,
                                   void* y_data) {
  Window v;
  if (window_of(x, w, conv, y, v)) return kBadParameter;
  if (int status = check_run(handle, v, {alpha, beta}, x_data, w_data, y_data, algorithm <= 2,
                             algorithm, room, bytes))
    return status;
  fake_cudnn.forward++;
  run_forward(v, x_data, w_data, nullptr, y_data);
  return 0;
}

#ifndef FAKE_WITHOUT_BIAS
EXPORT int cudnnConvolutionBiasActivationForward(void* handle, const void* alpha, void* x,
                                                 const void* x_data, void* w, const void* w_data,
                                                 void* conv, int algorithm, void* room,
                                                 size_t bytes, const void* alpha2, void* z,
                                                 const void* z_data, void* bias,
                                                 const void* bias_data, void* activation, void* y,
                                                 void* y_data) {
  Window v;
  if (window_of(x, w, conv, y, v)) return kBadParameter;
  Thing *of_z = thing_of(z, 't'), *of_bias = thing_of(bias, 't');
  Thing* of_activation = thing_of(activation, 'a');
  if (!of_z || !of_bias || !of_activation || !of_activation->is_set) return kBadParameter;
  if (std::memcmp(of_z->shape, v.y->shape, sizeof v.y->shape) != 0 || z_data == nullptr)
    return complain("what is added");
  int shape[] = {1, v.y->shape[1], 1, 1};
  if (std::memcmp(of_bias->shape, shape, sizeof shape) != 0 || of_bias->type != v.y->type)
    return complain("the bias");
  if (int status = check_run(handle, v, {alpha, alpha2}, x_data, w_data, y_data,
                             algorithm == dnn::kForwardImplicitPrecompGemm, algorithm, room, bytes))
    return status;
  fake_cudnn.with_bias++;
  run_forward(v, x_data, w_data, bias_data, y_data);
  return 0;
}
#endif

EXPORT int cudnnConvolutionBackwardData(void* handle, const void* alpha, void* w,
                                        const void* w_data, void* y, const void* y_data, void* conv,
                                        int algorithm, void* room, size_t bytes, const void* beta,
                                        void* x, void* x_data) {
  Window v;
  if (window_of(x, w, conv, y, v)) return kBadParameter;
  if (int status = check_run(handle, v, {alpha, beta}, y_data, w_data, x_data,
                             algorithm == dnn::kBackwardData1, algorithm, room, bytes))
    return status;
  fake_cudnn.backward_data++;
  sum_to(*v.x, x_data, {}, [&](auto& sums, auto type) {
    using T = decltype(type);
    for_products(v, [&](int64_t in, int64_t weight, int64_t out) {
      sums[static_cast<size_t>(in)] += value<T>(y_data, out) * value<T>(w_data, weight);
    });
  });
  return 0;
}

EXPORT int cudnnConvolutionBackwardFilter(void* handle, const void* alpha, void* x,
                                          const void* x_data, void* y, const void* y_data,
                                          void* conv, int algorithm, void* room, size_t bytes,
                                          const void* beta, void* w, void* w_data) {
  Window v;
  if (window_of(x, w, conv, y, v)) return kBadParameter;
  if (int status = check_run(handle, v, {alpha, beta}, x_data, y_data, w_data,
                             algorithm == dnn::kBackwardFilter1, algorithm, room, bytes))
    return status;
  fake_cudnn.backward_filter++;
  sum_to(*v.w, w_data, {}, [&](auto& sums, auto type) {
    using T = decltype(type);
    for_products(v, [&](int64_t in, int64_t weight, int64_t out) {
      sums[static_cast<size_t>(weight)] += value<T>(x_data, in) * value<T>(y_data, out);
    });
  });
  return 0;
}
