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

  // Outputs.
  const char* complaint = nullptr;  // the first misuse that cuDNN would reject
  int64_t heuristics = 0, forward = 0, with_bias = 0, backward_data = 0, backward_filter = 0;
  int64_t alive = 0;  // open handles and descriptors
  int algorithm = -1, math = -1;
  void* stream = nullptr;

  int64_t runs() const { return forward + with_bias + backward_data + backward_filter; }
};

}  // namespace flow
