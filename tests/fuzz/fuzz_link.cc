// What a client sends to the writer of a state: requests and events of any shape are read without a
// fault.
#include "engine/driver/link.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto frame = flow::decode_value({reinterpret_cast<const char*>(data), size});
  if (!frame.ok()) return 0;
  (void)flow::event_from_value(*frame);
  (void)flow::error_from_value(*frame);
  (void)flow::counts_from_value(*frame);
  (void)flow::plan_from_value(*frame);
  auto submission = flow::submission_from_value(*frame);
  if (submission.ok()) (void)flow::submission_to_value(*submission);
  return 0;
}
