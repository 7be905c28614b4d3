// Requests to a service: each gives tensors of the named shape or an error text; two joined
// requests are split again; responses are JSON, and their binary tensors are those of the outputs.
// A form feed ends the JSON of a request that has binary data. A request with spaces behind it is
// large, so that its long lists are read apart from the rest: that gives the same tensors.
#include "engine/serve/batch.hpp"
#include "engine/serve/oip.hpp"
#include "engine/serve/oip_datatypes.hpp"
#include "engine/serve/predict_result.hpp"
#include "engine/value/utf8.hpp"

namespace {

using flow::Tensors;

bool equal(const Tensors& a, const Tensors& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.first == y.first &&
                  flow::element_type(x.second) == flow::element_type(y.second) &&
                  x.second.shape == y.second.shape && *x.second.data == *y.second.data;
         });
}

void check_shapes(const Tensors& tensors) {
  for (const auto& [name, tensor] : tensors) FLOW_CHECK(flow::has_its_size(tensor));
}

// All outputs in JSON: a response that is read again as a request gives the same tensors.
void check_printed(const flow::InferRequest& request) {
  flow::InferRequest all;
  all.id = request.id;
  auto printed = flow::print_infer_response("m", all, request.inputs);
  if (!printed.ok()) {  // a binary tensor may hold NaN
    FLOW_CHECK(printed.error().message.starts_with("output `"));
    FLOW_CHECK(flow::is_utf8(printed.error().message));
    return;
  }
  FLOW_CHECK(printed->json_bytes == 0);
  auto answer = flow::from_json(printed->body);
  FLOW_CHECK(answer.ok() && answer->find("model_name")->as_string() == "m");
  FLOW_CHECK(answer->find("outputs")->as_table().list.size() == request.inputs.size());
  std::string again = printed->body;
  again.replace(again.find("\"outputs\":["), 11, "\"inputs\":[");
  auto same = flow::parse_infer_request(again, std::nullopt);
  FLOW_CHECK(same.ok() && same->id == request.id && equal(same->inputs, request.inputs));
}

// What predict gets can be returned.
void check_values(const Tensors& tensors) {
  auto again = flow::tensors_by_name(flow::predict_inputs(tensors), "m");
  FLOW_CHECK(again.ok() && equal(*again, tensors));
}

// The outputs that the request chooses, of all that it could mean.
void check_wanted(const flow::InferRequest& request) {
  auto wanted = flow::print_infer_response("m", request, request.inputs);
  if (!wanted.ok()) {
    FLOW_CHECK(flow::is_utf8(wanted.error().message));
    return;
  }
  size_t json = wanted->json_bytes == 0 ? wanted->body.size() : wanted->json_bytes;
  FLOW_CHECK(json <= wanted->body.size());
  auto answer = flow::from_json(std::string_view(wanted->body).substr(0, json));
  FLOW_CHECK(answer.ok());
  size_t at = json;
  for (const flow::Value& output : answer->find("outputs")->as_table().list) {
    const flow::Value* parameters = output.find("parameters");
    if (parameters == nullptr) continue;
    const flow::InferTensor& tensor = request.inputs.at(output.find("name")->as_string());
    flow::Bytes narrow = flow::narrow(flow::datatype_of(tensor), tensor.data);
    const auto& data = *narrow;
    FLOW_CHECK(parameters->find("binary_data_size")->as_integer() ==
               static_cast<int64_t>(data.size()));
    FLOW_CHECK(std::string_view(wanted->body).substr(at, data.size()) == data);
    at += data.size();
  }
  FLOW_CHECK(at == wanted->body.size());
}

void check_large(const std::string& body, const flow::Result<flow::InferRequest>& request) {
  constexpr size_t kLarge = 1024;
  auto large = flow::parse_infer_request(body + std::string(kLarge, ' '), std::nullopt);
  FLOW_CHECK(large.ok() == request.ok());
  if (request.ok()) FLOW_CHECK(equal(large->inputs, request->inputs));
}

flow::Result<Tensors> read(std::string_view text) {
  std::optional<uint64_t> json_bytes;
  std::string body(text);
  if (size_t end = text.find('\f'); end != std::string_view::npos) {
    body.erase(end, 1);
    json_bytes = end;
  }
  auto request = flow::parse_infer_request(body, json_bytes);
  if (!json_bytes) check_large(body, request);
  if (!request.ok()) {
    FLOW_CHECK(request.error().kind == flow::ErrorKind::user);
    FLOW_CHECK(flow::is_utf8(request.error().message));
    return request.error();
  }
  // The other parser accepts what this one does, apart from large numbers in fields that are
  // not used.
  auto other = flow::from_json(std::string_view(body).substr(0, json_bytes.value_or(body.size())));
  FLOW_CHECK(other.ok() || other.error().message.find("number overflow") != std::string::npos);
  check_shapes(request->inputs);
  check_printed(*request);
  check_values(request->inputs);
  check_wanted(*request);
  return std::move(request->inputs);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  size_t end = text.find('\0');  // two requests, or one with itself
  auto a = read(text.substr(0, end));
  auto b = end == std::string_view::npos ? a : read(text.substr(end + 1));
  if (!a.ok() || !b.ok()) return 0;
  std::string signature = flow::batch_signature(*a);
  if (signature.empty() || signature != flow::batch_signature(*b)) return 0;
  auto parts =
      flow::split_rows(flow::join_rows({&*a, &*b}), {flow::rows_of(*a), flow::rows_of(*b)});
  FLOW_CHECK(parts.ok() && equal((*parts)[0], *a) && equal((*parts)[1], *b));
  return 0;
}
