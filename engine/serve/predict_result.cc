#include "engine/serve/predict_result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/serve/oip_datatypes.hpp"
#include "engine/serve/request_parameters.hpp"
#include "engine/value/byte_elements.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kShownMax = 256;  // bytes of a name in an error

std::string kind_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::nil:
      return "nil";
    case Value::Kind::null:
      return "flow.null";
    case Value::Kind::boolean:
      return "a boolean";
    case Value::Kind::integer:
    case Value::Kind::number:
      return "a number";
    case Value::Kind::string:
      return "a string";
    case Value::Kind::table:
      return "a table";
    case Value::Kind::tensor:
      return "a tensor";
    case Value::Kind::file:
      return "a file";
    default:
      return "no value of a task";
  }
}

/// What the entry is instead of a tensor; "" if it is one.
std::string entry_problem(const Value& value) {
  if (is_byte_tensor(value)) {
    auto tensor = read_byte_tensor(value);
    return tensor.ok() ? "" : tensor.error().message;
  }
  if (value.kind() != Value::Kind::tensor) return "is " + kind_of(value);
  return value.as_tensor().data == nullptr ? "is a tensor without its data" : "";
}

InferTensor tensor_of(const Value& value) {
  if (!is_byte_tensor(value)) return value.as_tensor();
  auto read = read_byte_tensor(value);
  FLOW_CHECK(read.ok());
  InferTensor tensor;
  set_element_type(tensor, "BYTES");
  tensor.shape = std::move(read->shape);
  tensor.data = std::make_shared<const std::string>(std::move(read->data));
  return tensor;
}

/// What the result is instead of tensors by name; "" if it is such.
std::string problem(const Value& result) {
  if (result.kind() == Value::Kind::tensor) return "a tensor without a name";
  if (result.kind() != Value::Kind::table) return kind_of(result);
  const Value::Table& table = result.as_table();
  if (!table.list.empty())
    return fmt::format("a table whose entry [1], {}, has no name", kind_of(table.list.front()));
  if (table.fields.empty()) return "an empty table";
  for (const auto& [name, value] : table.fields) {
    if (name.kind() != Value::Kind::string)
      return fmt::format("a table whose entry [{}], {}, has no name", to_json(name),
                         kind_of(value));
    if (!is_utf8(name.as_string()))
      return fmt::format("a table with the name `{}`, which is not UTF-8",
                         cut_text(to_line(name.as_string()), kShownMax));
    if (std::string what = entry_problem(value); !what.empty())
      return fmt::format("a table whose entry `{}` {}",
                         cut_text(to_line(name.as_string()), kShownMax), what);
  }
  return "";
}

std::string shown(const std::string& name) { return cut_text(to_line(name), kShownMax); }

/// "requests[2].parameters.top"
std::string place_of(const std::string& place, const Value& key) {
  std::string name = key.kind() == Value::Kind::string ? shown(key.as_string())
                                                       : fmt::format("[{}]", to_json(key));
  const char* between = place.empty() || name.front() == '[' ? "" : ".";
  return place + between + name;
}

/// Why the parameter can't be in a response; "" if it can.
std::string parameter_problem(const Value& name, const Value& value) {
  using Kind = Value::Kind;
  if (name.kind() != Kind::string) return "has no name";
  if (!is_utf8(name.as_string())) return "has a name that is not UTF-8";
  if (is_protocol_parameter(name.as_string()) || name.as_string() == "triton_final_response")
    return "has a name that the protocol uses itself";
  if (value.kind() == Kind::boolean || value.kind() == Kind::integer) return "";
  if (value.kind() == Kind::number)
    return std::isfinite(value.as_number()) ? "" : "is NaN or an infinity";
  if (value.kind() == Kind::string)
    return is_utf8(value.as_string()) ? ""
                                      : "has bytes that are not UTF-8: return them as an output";
  return fmt::format("is {}: a parameter is a string, a number or a boolean", kind_of(value));
}

/// Reads the second result of `predict`. The texts of Errors are clauses about it.
class ResponseReader {
 public:
  explicit ResponseReader(size_t requests) : parameters_(requests) {}

  Result<ResponseParameters> read(const Value& response) {
    FLOW_TRY(read_table(response, "", {"parameters", "requests"}));
    if (const Value* requests = response.find("requests")) FLOW_TRY(read_requests(*requests));
    if (const Value* common = response.find("parameters"))
      for (auto& parameters : parameters_) FLOW_TRY(add(*common, "parameters", parameters));
    return std::move(parameters_);
  }

 private:
  static Error wrong(const std::string& place, const std::string& clause) {
    return {ErrorKind::task,
            place.empty() ? clause : fmt::format("has `{}`, which {}", place, clause)};
  }

  /// That it is a table with these entries only.
  static Status read_table(const Value& value, const std::string& place,
                           const std::vector<std::string_view>& known) {
    if (value.kind() != Value::Kind::table) return wrong(place, "is " + kind_of(value));
    if (!value.as_table().list.empty()) return wrong(place, "has the entry [1], which has no name");
    for (const auto& [name, entry] : value.as_table().fields)
      if (name.kind() != Value::Kind::string ||
          std::ranges::find(known, name.as_string()) == known.end())
        return wrong(place, fmt::format("has the unknown entry `{}`; it has: {}",
                                        place_of("", name), fmt::join(known, ", ")));
    return {};
  }

  Status read_requests(const Value& requests) {
    if (requests.kind() != Value::Kind::table) return wrong("requests", "is " + kind_of(requests));
    const Value::Table& table = requests.as_table();
    for (size_t i = 0; i < table.list.size(); i++)
      FLOW_TRY(read_request(Value(static_cast<int64_t>(i) + 1), table.list[i]));
    for (const auto& [key, request] : table.fields) FLOW_TRY(read_request(key, request));
    return {};
  }

  Status read_request(const Value& key, const Value& request) {
    std::string place = place_of("requests", key);
    if (key.kind() != Value::Kind::integer || key.as_integer() < 1 ||
        std::cmp_greater(key.as_integer(), parameters_.size()))
      return wrong(place,
                   fmt::format("is none of the {} requests of the call", parameters_.size()));
    if (request.is_nil()) return {};
    FLOW_TRY(read_table(request, place, {"parameters"}));
    const Value* parameters = request.find("parameters");
    if (parameters == nullptr) return {};
    return add(*parameters, place + ".parameters",
               parameters_[static_cast<size_t>(key.as_integer()) - 1]);
  }

  /// Adds those whose names are not there yet.
  static Status add(const Value& table, const std::string& place, std::vector<Parameter>& to) {
    if (table.kind() != Value::Kind::table) return wrong(place, "is " + kind_of(table));
    if (!table.as_table().list.empty()) return wrong(place + "[1]", "has no name");
    size_t own = to.size();
    for (const auto& [name, value] : table.as_table().fields) {
      if (std::string problem = parameter_problem(name, value); !problem.empty())
        return wrong(place_of(place, name), problem);
      auto is_it = [&](const Parameter& other) { return other.name == name.as_string(); };
      if (std::any_of(to.begin(), to.begin() + static_cast<ptrdiff_t>(own), is_it)) continue;
      to.push_back({.name = name.as_string(), .value = value});
    }
    if (to.size() > kParametersMax)
      return wrong(place, fmt::format("gives a response more than {} parameters", kParametersMax));
    if (text_bytes_of(to) > kParameterBytesMax)
      return wrong(place, fmt::format("gives a response more than {} bytes of names and texts: "
                                      "return long texts as an output of BYTES",
                                      kParameterBytesMax));
    return {};
  }

  ResponseParameters parameters_;
};

}  // namespace

Value predict_inputs(const Tensors& inputs) {
  std::vector<std::pair<Value, Value>> fields;
  for (const auto& [name, tensor] : inputs)
    fields.emplace_back(Value(name), has_bytes(tensor)
                                         ? byte_tensor_value(tensor.shape, *tensor.data)
                                         : Value(static_cast<const Tensor&>(tensor)));
  return Value::map(std::move(fields));
}

Result<Tensors> tensors_by_name(const Value& result, const std::string& service) {
  std::string what = problem(result);
  if (!what.empty())
    return Error{ErrorKind::task,
                 fmt::format("`predict` of `{}` returned {}: it must return a table of tensors by "
                             "name, such as {{ y = inputs.x * 2 }}",
                             service, what)};
  Tensors tensors;
  for (const auto& [name, value] : result.as_table().fields)
    tensors[name.as_string()] = tensor_of(value);
  return tensors;
}

Result<ResponseParameters> response_parameters(const Value& response, size_t requests,
                                               const std::string& service) {
  if (response.is_nil()) return ResponseParameters();
  auto parameters = ResponseReader(requests).read(response);
  if (parameters.ok()) return parameters;
  return Error{
      ErrorKind::task,
      fmt::format("`predict` of `{}` returned a second result that {}. It must be a table "
                  "with the parameters of the response, such as {{ parameters = {{ model = "
                  "\"v3\" }} }}",
                  service, parameters.error().message)};
}

}  // namespace flow
