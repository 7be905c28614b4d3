// Control interface of the fake cuDNN: its symbol `fake_cudnn`.
#pragma once
#include <cstddef>
#include <cstdint>

namespace flow {

struct FakeCudnn {
  // Inputs.
  size_t version = 91900;
  int create_status = 0;     // result of cudnnCreate
  int offers_status = 0;     // result of the heuristics
  int run_status = 0;        // result of the convolutions, which then do nothing
  bool takes_tf32 = false;   // of f32
  bool only_random = false;  // offers only algorithms whose bits vary between runs
  size_t workspace = 4096;   // of each algorithm but the one that needs none
  // Of graphs.
  int plan_status = 0;            // result of the last engine's plan; the first ones have defects
  int second_plan_status = 3000;  // result of the second engine's plan
  bool ignores_mask = false;      // all keys are seen
  bool varies = false;            // each run adds a little more to the results
  bool varies_in_sign = false;    // of the zeros that it makes of the smallest results
  double factor = 1;              // of the results
  double scale_factor = 1;        // of the scale
  int64_t zero_rows = 0;          // of dv, the last ones of each head

  // Outputs.
  const char* complaint = nullptr;  // the first misuse that cuDNN would reject
  int64_t heuristics = 0, forward = 0, with_bias = 0, backward_data = 0, backward_filter = 0;
  int64_t plans = 0, graphs = 0;  // plans that were finished, graphs that were run
  char graph[1024] = {};          // the operations of the last graph that was finished
  int64_t alive = 0;              // open handles and descriptors
  int algorithm = -1, math = -1;
  void* stream = nullptr;

  int64_t runs() const { return forward + with_bias + backward_data + backward_filter; }
};

}  // namespace flow
