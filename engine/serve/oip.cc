// The JSON of the Open Inference Protocol v2 (the "predict protocol, version 2" of KServe and
// Triton).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "engine/serve/model_server.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kDimensionsMax = 8;
constexpr size_t kInputsMax = 64;

struct Type {
  const char* name;
  DType dtype;
  const char* values;
};
constexpr Type kTypes[] = {
    {"FP32", DType::f32, "numbers up to 3.4028235e38"},
    {"FP64", DType::f64, "numbers"},
    {"INT64", DType::i64, "whole numbers from -9223372036854775808 to 9223372036854775807"},
    {"INT32", DType::i32, "whole numbers from -2147483648 to 2147483647"},
    {"UINT8", DType::u8, "whole numbers from 0 to 255"},
    {"BOOL", DType::boolean, "true and false"}};

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
bool append_integer(std::string& out, const Value& item) {
  if (item.kind() != Value::Kind::integer) return false;
  int64_t value = item.as_integer();
  if (value < static_cast<int64_t>(std::numeric_limits<T>::min()) ||
      value > static_cast<int64_t>(std::numeric_limits<T>::max()))
    return false;
  append(out, static_cast<T>(value));
  return true;
}

template <typename T>
bool append_number(std::string& out, const Value& item) {
  if (item.kind() != Value::Kind::integer && item.kind() != Value::Kind::number) return false;
  T value = static_cast<T>(item.as_number());
  if (!std::isfinite(value)) return false;
  append(out, value);
  return true;
}

bool append_item(std::string& out, DType dtype, const Value& item) {
  switch (dtype) {
    case DType::f32:
      return append_number<float>(out, item);
    case DType::f64:
      return append_number<double>(out, item);
    case DType::i64:
      return append_integer<int64_t>(out, item);
    case DType::i32:
      return append_integer<int32_t>(out, item);
    case DType::u8:
      return append_integer<uint8_t>(out, item);
    case DType::boolean:
      if (item.kind() == Value::Kind::boolean) append(out, static_cast<uint8_t>(item.as_boolean()));
      return item.kind() == Value::Kind::boolean;
    default:
      return false;
  }
}

/// A text field, or null if it is not UTF-8: flow's JSON may hold other bytes, but the protocol's
/// may not.
const Value* text_field(const Value& table, std::string_view name) {
  const Value* found = table.find(name);
  bool is_text =
      found != nullptr && found->kind() == Value::Kind::string && is_utf8(found->as_string());
  return is_text ? found : nullptr;
}

std::string shown(const Value& item) {
  constexpr size_t kShown = 40;
  return to_utf8(to_json(item).substr(0, kShown));
}

/// Flat or nested data. `where` and the input's name are for the error.
Status append_data(std::string& out, const Type& type, const Value& data, const std::string& where,
                   const std::string& name) {
  if (data.kind() != Value::Kind::table || !data.as_table().fields.empty())
    return user_error(where + " is not an array");
  size_t index = 0;
  for (const Value& item : data.as_table().list) {
    if (item.kind() == Value::Kind::table) {
      FLOW_TRY(append_data(out, type, item, fmt::format("{}[{}]", where, index), name));
    } else if (!append_item(out, type.dtype, item)) {
      return user_error(fmt::format("{}[{}] of `{}` is {}, but {} holds {}", where, index, name,
                                    shown(item), type.name, type.values));
    }
    index++;
  }
  return {};
}

Result<Tensor> parse_input(const Value& input, const std::string& where, const std::string& name) {
  const Value* datatype = text_field(input, "datatype");
  const Value* shape = input.find("shape");
  const Value* data = input.find("data");
  if (datatype == nullptr) return user_error(where + ".datatype is missing");
  if (shape == nullptr || shape->kind() != Value::Kind::table)
    return user_error(where + ".shape is missing");
  if (data == nullptr) return user_error(where + ".data is missing");
  const Type* type = std::ranges::find(kTypes, datatype->as_string(), &Type::name);
  if (type == std::end(kTypes))
    return user_error(
        fmt::format("{}.datatype `{}` is not one of FP32, FP64, INT64, INT32, UINT8, BOOL", where,
                    datatype->as_string()));
  Tensor tensor;
  tensor.dtype = type->dtype;
  size_t count = 1;
  const auto& extents = shape->as_table().list;
  if (extents.empty() || extents.size() > kDimensionsMax)
    return user_error(fmt::format("{}.shape must have 1 to {} dimensions", where, kDimensionsMax));
  for (const Value& extent : extents) {
    bool ok = extent.kind() == Value::Kind::integer && extent.as_integer() >= 0 &&
              extent.as_integer() <= static_cast<int64_t>(kRequestBytesMax);
    if (!ok) return user_error(where + ".shape has a dimension that is not a count");
    tensor.shape.push_back(extent.as_integer());
    count *= static_cast<size_t>(extent.as_integer());
    if (count > kRequestBytesMax)
      return user_error(where + ".shape is larger than a request may be");
  }
  auto bytes = std::make_shared<std::string>();
  FLOW_TRY(append_data(*bytes, *type, *data, where + ".data", name));
  size_t items = bytes->size() / dtype_size(tensor.dtype);
  if (items != count)
    return user_error(
        fmt::format("{}.data has {} values, its shape needs {}", where, items, count));
  tensor.digest = sha256(*bytes);
  tensor.data = std::move(bytes);
  return tensor;
}

template <typename T>
Status check_finite(const std::string& name, std::string_view bytes) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    if (std::isfinite(value)) continue;
    return Error{ErrorKind::task,
                 fmt::format("output `{}` holds {} at index {}, which JSON cannot represent", name,
                             value, at / sizeof(T))};
  }
  return {};
}

template <typename T>
void print_numbers(std::string& out, std::string_view bytes) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    if (at > 0) out += ',';
    out += fmt::format("{}", value);
  }
}

}  // namespace

Result<Tensors> parse_infer_request(std::string_view body, std::string& id) {
  if (body.size() > kRequestBytesMax) return user_error("the request is too large");
  auto request = from_json(body);
  if (!request.ok()) return user_error("the body is not JSON: " + request.error().message);
  const Value* inputs = request->find("inputs");
  if (inputs == nullptr || inputs->kind() != Value::Kind::table || inputs->as_table().list.empty())
    return user_error("the body has no `inputs`");
  if (inputs->as_table().list.size() > kInputsMax)
    return user_error(fmt::format("more than {} inputs", kInputsMax));
  if (const Value* given = text_field(*request, "id")) id = given->as_string();
  Tensors tensors;
  size_t index = 0;
  for (const Value& input : inputs->as_table().list) {
    std::string where = fmt::format("inputs[{}]", index++);
    const Value* name = text_field(input, "name");
    if (name == nullptr) return user_error(where + ".name is missing");
    auto tensor = parse_input(input, where, name->as_string());
    FLOW_TRY(tensor);
    if (!tensors.emplace(name->as_string(), std::move(*tensor)).second)
      return user_error(fmt::format("two inputs are named `{}`", name->as_string()));
  }
  return tensors;
}

Result<std::string> print_infer_response(const std::string& model, const std::string& id,
                                         const Tensors& outputs) {
  std::string out = fmt::format(R"({{"model_name":{})", to_json(Value(model)));
  if (!id.empty()) out += ",\"id\":" + to_json(Value(id));
  out += ",\"outputs\":[";
  bool first = true;
  for (const auto& [name, tensor] : outputs) {
    const char* datatype = "FP32";
    for (const Type& type : kTypes) {
      if (type.dtype == tensor.dtype) datatype = type.name;
    }
    out += fmt::format(R"({}{{"name":{},"datatype":"{}","shape":[{}],"data":[)", first ? "" : ",",
                       to_json(Value(name)), datatype, fmt::join(tensor.shape, ","));
    first = false;
    switch (tensor.dtype) {
      case DType::f32:
        FLOW_TRY(check_finite<float>(to_utf8(name), *tensor.data));
        print_numbers<float>(out, *tensor.data);
        break;
      case DType::f64:
        FLOW_TRY(check_finite<double>(to_utf8(name), *tensor.data));
        print_numbers<double>(out, *tensor.data);
        break;
      case DType::i64:
        print_numbers<int64_t>(out, *tensor.data);
        break;
      case DType::i32:
        print_numbers<int32_t>(out, *tensor.data);
        break;
      case DType::u8:
        print_numbers<uint8_t>(out, *tensor.data);
        break;
      case DType::boolean:
        for (size_t i = 0; i < tensor.data->size(); i++)
          out += fmt::format("{}{}", i > 0 ? "," : "", (*tensor.data)[i] != 0);
        break;
      default:
        break;
    }
    out += "]}";
  }
  return out + "]}";
}

}  // namespace flow
