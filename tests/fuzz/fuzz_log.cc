// Write-ahead logs: the end of their complete records, and whether what follows is damage.
#include "engine/store/damage.hpp"
#include "engine/store/log_records.hpp"
#include "flow/result.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view log(reinterpret_cast<const char*>(data), size);
  size_t end = flow::end_of_whole(log, 0);
  FLOW_CHECK(end <= size);
  size_t wrong = flow::first_wrong_record(log, 4);
  FLOW_CHECK(wrong == std::string_view::npos || (wrong == end && end < size));
  // Complete records stay so, and unwritten space after them is not damage.
  std::string grown(end + 3 * flow::kLogBlock, '\0');
  flow::fill_unwritten(grown, 0);
  grown.replace(0, end, log.substr(0, end));
  FLOW_CHECK(flow::first_wrong_record(grown, 4) == std::string_view::npos);
  FLOW_CHECK(flow::end_of_whole(grown, 0) >= end);
  return 0;
}
