// Responses of the Open Inference Protocol. Numbers are printed as fmt prints them: the shortest
// text that gives the same number again.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/serve/json/json_text.hpp"
#include "engine/serve/oip.hpp"
#include "engine/serve/oip_datatypes.hpp"
#include "engine/value/byte_elements.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kNumberMax = 32;         // characters of a number
constexpr size_t kCopiedMax = 16 * 1024;  // smaller data is cheaper to copy than to send apart

template <typename T>
char* print(char* at, T value) {
  return std::to_chars(at, at + kNumberMax, value).ptr;
}

template <typename T>
char* print_float(char* at, T value) {
  constexpr T kWholeMax = 1 << 24, kFixedMin = T{1e-4}, kFixedMax = T{1e16};
  T size = std::abs(value);
  if (size < kWholeMax && (size > 0 || !std::signbit(value)))
    if (auto whole = static_cast<int32_t>(value); static_cast<T>(whole) == value)
      return print(at, whole);
  bool is_fixed = size == 0 || (size >= kFixedMin && size < kFixedMax);
  auto format = is_fixed ? std::chars_format::fixed : std::chars_format::scientific;
  return std::to_chars(at, at + kNumberMax, value, format).ptr;
}

// Appends the elements with commas. Returns the index of one that JSON has no number for; else
// their count.
template <typename T, typename Print>
size_t print_all(std::string& out, std::string_view bytes, const Print& print_one) {
  constexpr size_t kBlock = 128;
  char text[kBlock * (kNumberMax + 1)];
  size_t count = bytes.size() / sizeof(T);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    char* at = text;
    size_t end = std::min(count, begin + kBlock);
    for (size_t i = begin; i < end; i++) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
      if (i > 0) *at++ = ',';
      char* next = print_one(at, value);
      if (next == nullptr) return i;
      at = next;
    }
    out.append(text, static_cast<size_t>(at - text));
  }
  return count;
}

template <typename T>
char* print_finite(char* at, T value) {
  return std::isfinite(value) ? print_float(at, value) : nullptr;
}

char* print_boolean(char* at, uint8_t value) {
  std::string_view text = value != 0 ? "true" : "false";
  return std::copy(text.begin(), text.end(), at);
}

size_t print_elements(std::string& out, const Datatype& datatype, std::string_view bytes) {
  switch (datatype.dtype) {
    case DType::f32:
      return print_all<float>(out, bytes, print_finite<float>);
    case DType::f64:
      return print_all<double>(out, bytes, print_finite<double>);
    case DType::f16:
      return print_all<uint16_t>(
          out, bytes, [](char* at, uint16_t half) { return print_finite(at, half_value(half)); });
    case DType::bf16:
      return print_all<uint16_t>(
          out, bytes, [](char* at, uint16_t bits) { return print_finite(at, bfloat_value(bits)); });
    case DType::i64:
      if (is_unsigned64(datatype)) return print_all<uint64_t>(out, bytes, print<uint64_t>);
      return print_all<int64_t>(out, bytes, print<int64_t>);
    case DType::i32:
      return print_all<int32_t>(out, bytes, print<int32_t>);
    case DType::u8:
      return print_all<uint8_t>(out, bytes, print<uint8_t>);
    case DType::boolean:
      return print_all<uint8_t>(out, bytes, print_boolean);
  }
  return 0;
}

/// Appends the elements of BYTES. Returns the index of one that is not UTF-8; else their count.
size_t print_texts(std::string& out, std::string_view data) {
  size_t count = 0;
  while (auto element = take_element(data)) {
    if (!is_utf8(*element)) return count;
    if (count++ > 0) out += ',';
    append_json_text(out, *element);
  }
  return count;
}

double number_at(const Tensor& tensor, size_t index) {
  const char* at = tensor.data->data() + index * dtype_size(tensor.dtype);
  auto read = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  if (tensor.dtype == DType::f64) return read(double{});
  if (tensor.dtype == DType::f16) return half_value(read(uint16_t{}));
  if (tensor.dtype == DType::bf16) return bfloat_value(read(uint16_t{}));
  return read(float{});
}

class ResponsePrinter {
 public:
  Status add(const std::string& name, const InferTensor& tensor, bool is_binary);
  /// With `are_own` the response may refer to the memory of the tensors.
  InferResponse take(bool are_own);

  std::string json;

 private:
  Status add_elements(const std::string& name, const InferTensor& tensor);

  std::vector<Bytes> binary_;
  size_t outputs_ = 0;
};

Status ResponsePrinter::add(const std::string& name, const InferTensor& tensor, bool is_binary) {
  char extent[kNumberMax];
  if (outputs_++ > 0) json += ',';
  json.append("{\"name\":").append(to_json(Value(name))).append(",\"datatype\":\"");
  json.append(datatype_of(tensor).name).append("\",\"shape\":[");
  for (size_t i = 0; i < tensor.shape.size(); i++) {
    if (i > 0) json += ',';
    json.append(extent, print(extent, tensor.shape[i]));
  }
  if (is_binary) {
    binary_.push_back(narrow(datatype_of(tensor), tensor.data));
    json.append("],\"parameters\":{\"binary_data_size\":");
    json.append(extent, print(extent, binary_.back()->size())).append("}}");
    return {};
  }
  json += "],\"data\":[";
  FLOW_TRY(add_elements(name, tensor));
  json += "]}";
  return {};
}

Status ResponsePrinter::add_elements(const std::string& name, const InferTensor& tensor) {
  if (has_bytes(tensor)) {
    auto count = element_count(tensor.shape);
    size_t printed = print_texts(json, *tensor.data);
    if (printed == count) return {};
    return Error{ErrorKind::task,
                 fmt::format("output `{}` holds bytes at index {} that are not UTF-8, which JSON "
                             "cannot represent: ask for it as binary data",
                             to_utf8(name), printed)};
  }
  size_t count = tensor.data->size() / dtype_size(tensor.dtype);
  size_t printed = print_elements(json, datatype_of(tensor), *tensor.data);
  if (printed < count)
    return Error{ErrorKind::task,
                 fmt::format("output `{}` holds {} at index {}, which JSON cannot represent",
                             to_utf8(name), number_at(tensor, printed), printed)};
  return {};
}

InferResponse ResponsePrinter::take(bool are_own) {
  json += "]}";
  InferResponse response;
  if (!binary_.empty()) response.json_bytes = json.size();
  response.body = std::move(json);
  size_t size = response.body.size();
  for (const Bytes& data : binary_) size += data->size();
  if (are_own && size - response.body.size() > kCopiedMax) {
    response.parts = std::move(binary_);
    return response;
  }
  response.body.reserve(size);
  for (const Bytes& data : binary_) response.body.append(*data);
  return response;
}

void add_parameters(std::string& json, const std::vector<Parameter>& parameters) {
  const char* before = ",\"parameters\":{";
  for (const Parameter& each : parameters) {
    json.append(std::exchange(before, ",")).append(to_json(Value(each.name)));
    json.append(":").append(to_json(each.value));
  }
  if (!parameters.empty()) json += '}';
}

Error no_output(const std::string& name, const Tensors& outputs) {
  std::string listed;
  for (const auto& [other, tensor] : outputs) {
    listed += fmt::format("{}`{}`", listed.empty() ? "" : ", ", to_utf8(other));
  }
  return user_error(fmt::format("the model has no output `{}`: it has {}", name, listed));
}

}  // namespace

Result<std::vector<const Tensors::value_type*>> requested_outputs(const InferRequest& request,
                                                                  const Tensors& outputs) {
  std::vector<const Tensors::value_type*> selected;
  if (request.outputs.empty()) {
    for (const auto& output : outputs) selected.push_back(&output);
  }
  for (const RequestedOutput& requested : request.outputs) {
    auto found = outputs.find(requested.name);
    if (found == outputs.end()) return no_output(requested.name, outputs);
    selected.push_back(&*found);
  }
  return selected;
}

Result<InferResponse> print_infer_response(const std::string& model, const InferRequest& request,
                                           const Tensors& outputs) {
  auto selected = requested_outputs(request, outputs);
  FLOW_TRY(selected);
  ResponsePrinter printer;
  printer.json.append("{\"model_name\":").append(to_json(Value(model)));
  printer.json.append(",\"model_version\":\"1\"");
  if (!request.id.empty()) printer.json.append(",\"id\":").append(to_json(Value(request.id)));
  add_parameters(printer.json, request.response_parameters);
  printer.json.append(",\"outputs\":[");
  for (size_t i = 0; i < selected->size(); i++) {
    const auto& [name, tensor] = *(*selected)[i];
    bool is_binary =
        request.outputs.empty() ? request.are_outputs_binary : request.outputs[i].is_binary;
    FLOW_TRY(printer.add(name, tensor, is_binary));
  }
  return printer.take(request.are_outputs_own);
}

}  // namespace flow
