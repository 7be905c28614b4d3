/* The C interface for tensor operations in a shared library that a pipeline names:
 *
 *   local ops = flow.operations(path)  -- in a task; path: a parameter, flow.file or an output
 *   local y = ops.scale(x, 2.5)        -- tensors first, then numbers
 *
 * The library exports flow_operations() and does not link flow; it needs only this header, in C or
 * C++. It runs in the executor of the task: a crash ends the attempt and nothing else. The
 * library's content is part of the task's cache key, like that of every input file.
 */
#ifndef FLOW_OPERATION_H
#define FLOW_OPERATION_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLOW_OPERATION_ABI 1
#define FLOW_RANK_MAX 8
#define FLOW_OUTPUTS_MAX 8

/* Element types. bf16 is the upper half of an f32; a bool is one byte, 0 or 1. */
enum { FLOW_F32, FLOW_F16, FLOW_BF16, FLOW_F64, FLOW_I64, FLOW_I32, FLOW_U8, FLOW_BOOL };

typedef struct FlowTensor {
  int32_t type;
  int32_t rank;
  int64_t sizes[FLOW_RANK_MAX];
  int64_t strides[FLOW_RANK_MAX]; /* in elements; may be 0 or negative for inputs */
  void* data;                     /* first element, in the memory of the call's device */
} FlowTensor;

typedef struct FlowCall {
  int32_t device;  /* -1: the CPU; else the CUDA device that holds all tensors */
  int32_t threads; /* number of CPU threads that the call may use */
  void* stream;    /* on a GPU: the cudaStream_t on which to enqueue the work before returning */
  int32_t input_count;
  const FlowTensor* inputs;
  int32_t number_count;
  const double* numbers;
  int32_t output_count; /* set by describe, 1 to FLOW_OUTPUTS_MAX */
  FlowTensor* outputs;  /* describe sets type, rank and sizes; run gets dense row-major memory */
  char* message;        /* buffer for an error message, including the terminating 0 */
  size_t message_size;
} FlowCall;

typedef struct FlowOperation {
  const char* name; /* letters, digits and _ */
  /* describe sets the outputs' types and sizes for these inputs; run computes them. Both return 0
   * on success; otherwise they fill in `message`. */
  int (*describe)(FlowCall* call);
  int (*run)(FlowCall* call);
  /* NULL, or the name of the operation that computes gradients. It takes the inputs, the output and
   * the output's gradient, and returns one gradient per input, with that input's type and sizes.
   * Only for operations with one output. */
  const char* backward;
} FlowOperation;

/* Returns the library's operations, or NULL if it does not support this ABI version. */
const FlowOperation* flow_operations(int32_t abi, int32_t* count);

#ifdef __cplusplus
}
#endif
#endif
