// Batches of the journal, snapshots and rows: what decodes is encoded again without a fault; nothing crashes.
#include "engine/store/checksum.hpp"
#include "engine/store/rows.hpp"
#include "engine/store/store.hpp"

namespace {

std::shared_ptr<const flow::Plan> small_plan() {
  auto plan = std::make_shared<flow::Plan>();
  plan->pipeline = "p";
  plan->defs.resize(2);
  plan->defs[0].name = "t";
  plan->defs[1].name = "u";
  for (const char* name : {"t", "u", "t#2"}) {
    flow::Node node;
    node.name = name;
    node.def = name[0] == 'u' ? 1 : 0;
    node.args = flow::Value::list({});
    plan->nodes.push_back(std::move(node));
  }
  return plan;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto plan = small_plan();
  static const auto fragment = std::make_shared<const flow::PlanFragment>();
  flow::FindPlan find_plan = [](const flow::Digest&) { return plan; };
  flow::FindFragment find_fragment = [](const flow::Digest&) { return fragment; };
  std::string bytes(reinterpret_cast<const char*>(data), size);
  (void)flow::decode_run_row(bytes);
  (void)flow::decode_cache_entry(bytes);
  (void)flow::decode_log(bytes);
  flow::seal(bytes);  // the checksum is right, so that the parser behind it is reached
  auto records = flow::decode_records(bytes, find_plan, find_fragment);
  if (records.ok()) {
    std::string again = flow::encode_records(*records);
    auto back = flow::decode_records(again, find_plan, find_fragment);
    FLOW_CHECK(back.ok() && flow::encode_records(*back) == again);
  }
  return 0;
}
