/* x / (1 + |x|), and its gradient 1 / (1 + |x|)^2, as operations for a pipeline. */
#include <flow/operation.h>
#include <math.h>
#include <stdio.h>

static int say(FlowCall* call, const char* problem) {
  snprintf(call->message, call->message_size, "%s", problem);
  return 1;
}

static int takes_floats(FlowCall* call, int count) {
  if (call->device != -1) return say(call, "this library has no code for a GPU");
  if (call->input_count != count) return say(call, "it takes one tensor");
  for (int i = 0; i < count; i++)
    if (call->inputs[i].type != FLOW_F32) return say(call, "it takes f32");
  return 0;
}

/* What comes out is like the first input. */
static void like_first(FlowCall* call) {
  call->output_count = 1;
  call->outputs[0] = call->inputs[0];
}

/* Where element `at` in row-major order of a tensor with any strides lies. */
static int64_t place(const FlowTensor* x, int64_t at) {
  int64_t offset = 0;
  for (int dim = x->rank - 1; dim >= 0; dim--) {
    offset += at % x->sizes[dim] * x->strides[dim];
    at /= x->sizes[dim];
  }
  return offset;
}

static int64_t count_of(const FlowTensor* x) {
  int64_t count = 1;
  for (int dim = 0; dim < x->rank; dim++) count *= x->sizes[dim];
  return count;
}

static int describe(FlowCall* call) {
  if (takes_floats(call, 1)) return 1;
  like_first(call);
  return 0;
}

static int run(FlowCall* call) {
  const FlowTensor* x = &call->inputs[0];
  float* out = call->outputs[0].data;
  for (int64_t i = 0; i < count_of(x); i++) {
    float value = ((const float*)x->data)[place(x, i)];
    out[i] = value / (1 + fabsf(value));
  }
  return 0;
}

/* The input, the output, the output's gradient. */
static int describe_backward(FlowCall* call) {
  if (takes_floats(call, 3)) return 1;
  like_first(call);
  return 0;
}

static int run_backward(FlowCall* call) {
  const FlowTensor *x = &call->inputs[0], *grad = &call->inputs[2];
  float* out = call->outputs[0].data;
  for (int64_t i = 0; i < count_of(x); i++) {
    float below = 1 + fabsf(((const float*)x->data)[place(x, i)]);
    out[i] = ((const float*)grad->data)[place(grad, i)] / (below * below);
  }
  return 0;
}

static const FlowOperation operations[] = {
    {"softsign", describe, run, "softsign_backward"},
    {"softsign_backward", describe_backward, run_backward, NULL},
};

const FlowOperation* flow_operations(int32_t abi, int32_t* count) {
  if (abi != FLOW_OPERATION_ABI) return NULL;
  *count = 2;
  return operations;
}
