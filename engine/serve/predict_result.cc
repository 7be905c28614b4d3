#include "engine/serve/predict_result.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "engine/serve/oip_datatypes.hpp"
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

}  // namespace flow
