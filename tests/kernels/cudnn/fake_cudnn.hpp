// What the tests tell the cuDNN of theirs, and what it tells them: its symbol `fake_cudnn`.
#pragma once
#include <cstddef>
#include <cstdint>

namespace flow {

struct FakeCudnn {
  // To it.
  size_t version = 91900;
  int create_status = 0;     // of cudnnCreate
  int offers_status = 0;     // of the heuristics
  int run_status = 0;        // of the convolutions, which then do nothing
  bool only_random = false;  // offers nothing that gives the same bits each time
  size_t workspace = 4096;   // of each algorithm but the one that needs none

  // From it.
  const char* complaint = nullptr;  // the first thing that cuDNN would not have taken
  int64_t heuristics = 0, forward = 0, with_bias = 0, backward_data = 0, backward_filter = 0;
  int64_t alive = 0;  // handles and descriptors
  int algorithm = -1, math = -1;
  void* stream = nullptr;

  int64_t runs() const { return forward + with_bias + backward_data + backward_filter; }
};

}  // namespace flow
