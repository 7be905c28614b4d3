// Rows that are read without a replay: what decodes survives encoding and decoding.
#include <google/protobuf/stubs/logging.h>

#include "engine/runs/notifications.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/store/rows.hpp"

namespace {

const auto kQuiet = google::protobuf::SetLogHandler(nullptr);

template <typename Row>
void check(std::string_view bytes, flow::Result<Row> (*decode)(std::string_view),
           std::string (*encode)(const Row&)) {
  auto row = decode(bytes);
  if (!row.ok()) return;
  std::string again = encode(*row);
  auto back = decode(again);
  FLOW_CHECK(back.ok() && encode(*back) == again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check(bytes, flow::decode_run_record, flow::encode_run_record);
  check(bytes, flow::decode_cache_entry, flow::encode_cache_entry);
  check(bytes, flow::decode_log, flow::encode_log);
  check(bytes, flow::decode_metric, flow::encode_metric);
  check(bytes, flow::decode_attempt, flow::encode_attempt);
  if (auto stride = flow::decode_metric_stride(bytes); stride.ok())
    FLOW_CHECK(flow::decode_metric_stride(flow::encode_metric_stride(*stride)).value() == *stride);
  auto settings = flow::decode_notify_settings(bytes);
  FLOW_CHECK(flow::decode_notify_settings(flow::encode_notify_settings(settings)) == settings);
  auto told = flow::decode_notification(bytes);
  FLOW_CHECK(flow::decode_notification(flow::encode_notification(told)) == told);
  if (auto key = flow::parse_metric_key(bytes); key && key->number)
    FLOW_CHECK(flow::metric_point_key(key->series, *key->number) == bytes);
  return 0;
}
