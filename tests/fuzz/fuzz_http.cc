// Requests to a service: each gives tensors of the named shape or an error text; two joined
// requests are split again; responses are JSON.
#include <numeric>

#include "engine/serve/batch.hpp"
#include "engine/value/utf8.hpp"

namespace {

using flow::Tensors;

bool equal(const Tensors& a, const Tensors& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.first == y.first && x.second.dtype == y.second.dtype &&
                  x.second.shape == y.second.shape && x.second.digest == y.second.digest &&
                  *x.second.data == *y.second.data;
         });
}

flow::Result<Tensors> read(std::string_view body) {
  std::string id;
  auto inputs = flow::parse_infer_request(body, id);
  if (!inputs.ok()) {
    FLOW_CHECK(flow::is_utf8(inputs.error().message));
    return inputs;
  }
  for (const auto& [name, tensor] : *inputs) {
    int64_t count =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    FLOW_CHECK(tensor.data->size() == static_cast<size_t>(count) * flow::dtype_size(tensor.dtype));
  }
  auto printed = flow::print_infer_response("m", id, *inputs);
  if (!printed.ok()) {  // a number that does not fit into FP32 becomes an infinity
    FLOW_CHECK(printed.error().message.starts_with("output `"));
    FLOW_CHECK(flow::is_utf8(printed.error().message));
    return inputs;
  }
  auto answer = flow::from_json(*printed);
  FLOW_CHECK(answer.ok() && answer->find("model_name")->as_string() == "m");
  FLOW_CHECK(answer->find("outputs")->as_table().list.size() == inputs->size());
  return inputs;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  size_t end = text.find('\0');  // two requests, or one with itself
  auto a = read(text.substr(0, end));
  auto b = end == std::string_view::npos ? a : read(text.substr(end + 1));
  if (!a.ok() || !b.ok() || !flow::can_join(*a, *b)) return 0;
  auto parts =
      flow::split_rows(flow::join_rows({&*a, &*b}), {flow::rows_of(*a), flow::rows_of(*b)});
  FLOW_CHECK(parts.ok() && equal((*parts)[0], *a) && equal((*parts)[1], *b));
  return 0;
}
