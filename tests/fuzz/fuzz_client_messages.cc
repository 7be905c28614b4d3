// What a client and the writer of a state send each other: requests, events and answers of any
// shape are read without a fault, and what was read is written and read again as it was.
#include "engine/client/messages.hpp"
#include "engine/submission/prebuilt_graph.hpp"

namespace {

flow::Value tasks_again(const flow::Value& value) {
  std::vector<flow::TaskInfo> tasks;
  flow::add_tasks(value, tasks);
  return flow::tasks_to_value(tasks, 0, tasks.size());
}

flow::Value nodes_again(const flow::Value& value) {
  return flow::nodes_to_value(flow::nodes_from_value(value));
}

void check(const flow::Value& value, flow::Value (*again)(const flow::Value&)) {
  flow::Value once = again(value);
  FLOW_CHECK(flow::encode_value(again(once)) == flow::encode_value(once));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto frame = flow::decode_value({reinterpret_cast<const char*>(data), size});
  if (!frame.ok()) return 0;
  (void)flow::event_from_value(*frame);
  (void)flow::error_from_value(*frame);
  (void)flow::counts_from_value(*frame);
  (void)flow::plan_from_value(*frame);
  (void)flow::info_to_value(flow::info_from_value(*frame));
  check(*frame, tasks_again);
  check(*frame, nodes_again);
  auto submission = flow::submission_from_value(*frame);
  if (!submission.ok()) return 0;
  (void)flow::submission_to_value(*submission);
  if (submission->built) (void)flow::accept_prebuilt_graph(*submission->built);
  return 0;
}
