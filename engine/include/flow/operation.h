/* Operations on tensors from a shared library that a pipeline names:
 *
 *   local ops = flow.operations(path)          -- in a task; path is a parameter, flow.file or a
 * task's output local y = ops.scale(x, 2.5)                -- tensors first, then numbers
 *
 * The library exports flow_operations() and links nothing of flow: this header is all that it
 * needs, from C or C++. It runs in the executor of the task: a crash there takes the attempt with
 * it and nothing else. Its content is part of the task's key, as every file that a task takes.
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

/* Types of elements. bf16 is the upper half of an f32; a bool is a byte that is 0 or 1. */
enum { FLOW_F32, FLOW_F16, FLOW_BF16, FLOW_F64, FLOW_I64, FLOW_I32, FLOW_U8, FLOW_BOOL };

typedef struct FlowTensor {
  int32_t type;
  int32_t rank;
  int64_t sizes[FLOW_RANK_MAX];
  int64_t strides[FLOW_RANK_MAX]; /* in elements; inputs may have any, 0 and negative ones too */
  void* data;                     /* of the first element, in the memory of the call's device */
} FlowTensor;

typedef struct FlowCall {
  int32_t device;  /* -1: the CPU; else the number of the GPU that all tensors lie on */
  int32_t threads; /* of the CPU that the call may use */
  void* stream;    /* of the GPU, a cudaStream_t: put the work there and return */
  int32_t input_count;
  const FlowTensor* inputs;
  int32_t number_count;
  const double* numbers;
  int32_t output_count; /* describe sets it, 1..FLOW_OUTPUTS_MAX */
  FlowTensor* outputs;  /* describe sets type, rank and sizes; run finds dense row-major memory */
  char* message;        /* why it failed, at most message_size bytes with the ending 0 */
  size_t message_size;
} FlowCall;

typedef struct FlowOperation {
  const char* name; /* letters, digits and _ */
  /* What comes out of these inputs. Both return 0, or anything else and a message. */
  int (*describe)(FlowCall* call);
  int (*run)(FlowCall* call);
  /* NULL, or the name of the operation that computes gradients: it takes the inputs, the output and
   * the output's gradient, and gives a gradient for each input, of that input's type and sizes.
   * Only for one output. */
  const char* backward;
} FlowOperation;

/* The library's list; NULL where it does not know this ABI. */
const FlowOperation* flow_operations(int32_t abi, int32_t* count);

#ifdef __cplusplus
}
#endif
#endif
