// What a client sends to the writer of a state: requests and events of any shape are read without a
// fault.
#include "engine/driver/built_away.hpp"
#include "engine/driver/link.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto frame = flow::decode_value({reinterpret_cast<const char*>(data), size});
  if (!frame.ok()) return 0;
  (void)flow::event_from_value(*frame);
  (void)flow::error_from_value(*frame);
  (void)flow::counts_from_value(*frame);
  (void)flow::plan_from_value(*frame);
  (void)flow::info_to_value(flow::info_from_value(*frame));
  std::vector<flow::TaskInfo> tasks;
  flow::add_tasks(*frame, tasks);
  (void)flow::tasks_to_value(tasks, 0, tasks.size());
  auto submission = flow::submission_from_value(*frame);
  if (!submission.ok()) return 0;
  (void)flow::submission_to_value(*submission);
  if (submission->built) (void)flow::take_in(*submission->built);
  return 0;
}
