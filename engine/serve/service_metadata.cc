#include "engine/serve/service_metadata.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "engine/serve/declared_tensors.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

std::string json_text(const std::string& text) { return to_json(Value(text)); }

std::string configured_tensors(const std::vector<TensorSpec>& tensors, bool without_rows) {
  std::string json = "[";
  for (const TensorSpec& spec : tensors) {
    if (json.size() > 1) json += ',';
    auto first = spec.shape.begin() + (without_rows ? 1 : 0);
    std::string_view type = spec.datatype == "BYTES" ? "STRING" : std::string_view(spec.datatype);
    json += fmt::format(R"({{"name":{},"data_type":"TYPE_{}","dims":[{}]}})", json_text(spec.name),
                        type, fmt::join(first, spec.shape.end(), ","));
  }
  return json + "]";
}

}  // namespace

std::string server_metadata() {
  return R"({"name":"flow","version":"1","extensions":["binary_tensor_data","model_configuration",)"
         R"("model_repository","parameters","statistics"]})";
}

std::string model_metadata(const ServiceOptions& service) {
  return fmt::format(
      R"({{"name":{},"versions":["{}"],"platform":"flow_lua","inputs":{},"outputs":{}}})",
      json_text(service.name), kModelVersion, tensors_json(service.inputs),
      tensors_json(service.outputs));
}

std::string model_configuration(const ServiceOptions& service) {
  bool is_declared = !service.inputs.empty() || !service.outputs.empty();
  bool is_batched = service.batch_max > 1 && is_declared && have_rows(service.inputs) &&
                    have_rows(service.outputs);
  return fmt::format(
      R"({{"name":{},"platform":"flow_lua","backend":"flow","max_batch_size":{},"input":{},)"
      R"("output":{},"dynamic_batching":{{"max_queue_delay_microseconds":{}}}}})",
      json_text(service.name), is_batched ? service.batch_max : 0,
      configured_tensors(service.inputs, is_batched),
      configured_tensors(service.outputs, is_batched), service.batch_wait_us);
}

std::string repository_index(const ServiceOptions& service, bool is_ready) {
  return fmt::format(R"([{{"name":{},"version":"{}","state":"{}","reason":""}}])",
                     json_text(service.name), kModelVersion, is_ready ? "READY" : "UNAVAILABLE");
}

}  // namespace flow
