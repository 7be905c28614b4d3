#include "engine/serve/request_parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "engine/value/utf8.hpp"

namespace flow {

namespace {

using Place = Parameter::Place;
using Fields = std::vector<std::pair<Value, Value>>;

constexpr size_t kNameShownMax = 256;  // bytes of a name in an error

uint64_t text_bytes(const Parameter& parameter) {
  uint64_t bytes = parameter.tensor.size() + parameter.name.size();
  if (parameter.value.kind() == Value::Kind::string) bytes += parameter.value.as_string().size();
  return bytes;
}

Value table_of(Fields fields) { return fields.empty() ? Value() : Value::map(std::move(fields)); }

Value tensor_table(const std::vector<Parameter>& parameters, Place place) {
  std::map<std::string, Fields> tensors;
  for (const Parameter& each : parameters)
    if (each.place == place) tensors[each.tensor].emplace_back(Value(each.name), each.value);
  Fields fields;
  for (auto& [name, of_tensor] : tensors)
    fields.emplace_back(Value(name), Value::map(std::move(of_tensor)));
  return table_of(std::move(fields));
}

}  // namespace

bool is_protocol_parameter(std::string_view name) {
  return name == "binary_data" || name == "binary_data_output" || name == "binary_data_size";
}

std::string parameter_place(const std::string& place, std::string_view name) {
  return fmt::format("{}{}parameters.{}", place, place.empty() ? "" : ".",
                     cut_text(to_utf8(std::string(name)), kNameShownMax));
}

Status add_parameter(std::vector<Parameter>& parameters, Parameter parameter,
                     const std::string& place) {
  if (parameters.size() == kParametersMax)
    return user_error(fmt::format("the request has more than {} parameters", kParametersMax));
  uint64_t bytes = text_bytes(parameter);
  for (const Parameter& other : parameters) {
    if (other.place == parameter.place && other.tensor == parameter.tensor &&
        other.name == parameter.name)
      return user_error(fmt::format("{} is there twice", place));
    bytes += text_bytes(other);
  }
  if (bytes > kParameterBytesMax)
    return user_error(
        fmt::format("the parameters of the request have more than {} bytes of names and texts: "
                    "send long texts as inputs of BYTES",
                    kParameterBytesMax));
  parameters.push_back(std::move(parameter));
  return {};
}

uint64_t text_bytes_of(const std::vector<Parameter>& parameters) {
  uint64_t bytes = 0;
  for (const Parameter& each : parameters) bytes += text_bytes(each);
  return bytes;
}

uint64_t bytes_of(const std::vector<Parameter>& parameters) {
  return parameters.size() * sizeof(Parameter) + text_bytes_of(parameters);
}

Result<std::optional<std::chrono::microseconds>> timeout_of(
    const std::vector<Parameter>& parameters) {
  using Time = std::optional<std::chrono::microseconds>;
  for (const Parameter& each : parameters) {
    if (each.place != Place::request || each.name != "timeout") continue;
    bool is_time = each.value.kind() == Value::Kind::integer && each.value.as_integer() >= 0;
    if (!is_time)
      return user_error("parameters.timeout is not a whole number of microseconds from 0 on");
    constexpr int64_t kLongest = std::numeric_limits<int64_t>::max() / 4000;  // fits nanoseconds
    int64_t time = std::min(each.value.as_integer(), kLongest);
    return time == 0 ? Time() : Time(std::chrono::microseconds(time));
  }
  return Time();
}

ParameterTables parameter_tables(const std::vector<Parameter>& parameters) {
  if (parameters.empty()) return {};
  Fields request;
  for (const Parameter& each : parameters)
    if (each.place == Place::request) request.emplace_back(Value(each.name), each.value);
  return {table_of(std::move(request)), tensor_table(parameters, Place::input),
          tensor_table(parameters, Place::output)};
}

}  // namespace flow
