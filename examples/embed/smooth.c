/* An operation of the host program: moving_mean(x, n), the mean of each element of the last
 * dimension and the n - 1 before it. A library of its own, because tasks run in other processes. */
#include <flow/operation.h>
#include <stdio.h>

static int say(FlowCall* call, const char* problem) {
  snprintf(call->message, call->message_size, "%s", problem);
  return 1;
}

static int describe(FlowCall* call) {
  if (call->device != -1) return say(call, "this library has no code for a GPU");
  if (call->input_count != 1 || call->inputs[0].type != FLOW_F32 || call->inputs[0].rank != 1)
    return say(call, "it takes one row of f32");
  if (call->number_count != 1 || call->numbers[0] < 1) return say(call, "it takes a window of 1 or more");
  call->output_count = 1;
  call->outputs[0] = call->inputs[0];
  return 0;
}

static int run(FlowCall* call) {
  const FlowTensor* x = &call->inputs[0];
  float* out = call->outputs[0].data;
  int64_t window = (int64_t)call->numbers[0];
  double sum = 0;
  for (int64_t i = 0; i < x->sizes[0]; i++) {
    sum += ((const float*)x->data)[i * x->strides[0]];
    if (i >= window) sum -= ((const float*)x->data)[(i - window) * x->strides[0]];
    out[i] = (float)(sum / (double)(i < window ? i + 1 : window));
  }
  return 0;
}

static const FlowOperation operations[] = {{"moving_mean", describe, run, NULL}};

const FlowOperation* flow_operations(int32_t abi, int32_t* count) {
  if (abi != FLOW_OPERATION_ABI) return NULL;
  *count = 1;
  return operations;
}
