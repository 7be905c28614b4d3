// Words of the command line and of scripts: sizes, durations, base64, labels; and the address of a
// rank. What is parsed survives printing and parsing.
#include "engine/base/size_units.hpp"
#include "engine/crypto/base64.hpp"
#include "engine/plan/worker_selector.hpp"
#include "flow/collective.hpp"
#include "flow/value.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto bytes = flow::parse_bytes(text); bytes.ok()) {
    FLOW_CHECK(*bytes >= 0);
    FLOW_CHECK(*flow::parse_bytes(std::to_string(*bytes)) == *bytes);
    FLOW_CHECK(!flow::format_bytes(static_cast<uint64_t>(*bytes)).empty());
  }
  auto us = flow::parse_duration_us(text), ms = flow::parse_duration_ms(text);
  if (us.ok()) {
    FLOW_CHECK(ms.ok() && *ms == *us / 1000 + (*us % 1000 != 0));
    FLOW_CHECK(*flow::parse_duration_us(std::to_string(*us) + "us") == *us);
    FLOW_CHECK(!flow::format_duration(*ms).empty());
  }
  if (auto where = flow::WorkerSelector::parse(text); where.ok()) {
    auto negated = flow::WorkerSelector::parse("not (" + std::string(text) + ")");
    flow::Labels labels{{"a", "b"}, {"c", ""}};
    FLOW_CHECK(!negated.ok() || where->matches(labels) != negated->matches(labels));
  }
  if (auto progress = flow::decode_rank_progress(text)) {
    auto again = flow::decode_rank_progress(flow::encode_rank_progress(*progress));
    FLOW_CHECK(again &&
               flow::encode_rank_progress(*again) == flow::encode_rank_progress(*progress));
    flow::RankProgress other{7, flow::Collective::all_reduce, true, std::nullopt, 0};
    FLOW_CHECK(!flow::hang_text({progress, other, std::nullopt}).empty());
  }
  std::string bytes;
  if (flow::base64_decode(text, bytes)) FLOW_CHECK(flow::base64_encode(bytes) == text);
  FLOW_CHECK(flow::base64_decode(flow::base64_encode(text), bytes) && bytes == text);
  return 0;
}
