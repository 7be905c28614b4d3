#include "engine/value/byte_elements.hpp"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

namespace flow {

namespace {

constexpr std::string_view kShape = "shape";

Result<std::vector<int64_t>> read_shape(const Value& value) {
  constexpr const char* kForm = "has a `shape` that is not a list of sizes such as { 2, 1 }";
  bool is_list = value.kind() == Value::Kind::table && value.as_table().fields.empty();
  if (!is_list) return user_error(kForm);
  std::vector<int64_t> shape;
  for (const Value& size : value.as_table().list) {
    if (size.kind() != Value::Kind::integer || size.as_integer() < 0) return user_error(kForm);
    shape.push_back(size.as_integer());
  }
  return shape;
}

}  // namespace

std::optional<uint64_t> element_count(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(count, static_cast<uint64_t>(extent), &count))
      return std::nullopt;
  return count;
}

size_t begin_element(std::string& out) {
  out.append(sizeof(uint32_t), '\0');
  return out.size();
}

void end_element(std::string& out, size_t place) {
  size_t length = out.size() - place;
  FLOW_CHECK(length <= std::numeric_limits<uint32_t>::max());
  auto size = static_cast<uint32_t>(length);
  std::memcpy(out.data() + place - sizeof size, &size, sizeof size);
}

void append_element(std::string& out, std::string_view element) {
  size_t place = begin_element(out);
  out.append(element);
  end_element(out, place);
}

std::optional<std::string_view> take_element(std::string_view& data) {
  uint32_t size = 0;
  if (data.size() < sizeof size) return std::nullopt;
  std::memcpy(&size, data.data(), sizeof size);
  if (data.size() - sizeof size < size) return std::nullopt;
  std::string_view element = data.substr(sizeof size, size);
  data.remove_prefix(sizeof size + size);
  return element;
}

std::optional<size_t> size_of_elements(std::string_view data, uint64_t count) {
  std::string_view rest = data;
  for (uint64_t i = 0; i < count; i++)
    if (!take_element(rest)) return std::nullopt;
  return data.size() - rest.size();
}

Value byte_tensor_value(const std::vector<int64_t>& shape, std::string_view data) {
  Value::Table table;
  while (auto element = take_element(data)) table.list.emplace_back(*element);
  table.fields.emplace_back(Value(kShape),
                            Value::list(std::vector<Value>(shape.begin(), shape.end())));
  return table;
}

bool is_byte_tensor(const Value& value) {
  if (value.kind() != Value::Kind::table) return false;
  return value.find(kShape) != nullptr || !value.as_table().list.empty();
}

Result<ByteTensor> read_byte_tensor(const Value& value) {
  const Value::Table& table = value.as_table();
  ByteTensor tensor;
  tensor.shape = {static_cast<int64_t>(table.list.size())};
  for (const auto& [key, field] : table.fields) {
    if (key != Value(kShape))
      return user_error(
          fmt::format("has the entry [{}] besides its strings and `shape`", to_json(key)));
    auto shape = read_shape(field);
    FLOW_TRY(shape);
    tensor.shape = std::move(*shape);
  }
  auto count = element_count(tensor.shape);
  if (count != table.list.size())
    return user_error(fmt::format("has {} strings, and its `shape` needs {}", table.list.size(),
                                  count ? std::to_string(*count) : "more than a list may have"));
  for (size_t i = 0; i < table.list.size(); i++) {
    const Value& item = table.list[i];
    bool is_element = item.kind() == Value::Kind::string &&
                      item.as_string().size() <= std::numeric_limits<uint32_t>::max();
    if (!is_element)
      return user_error(
          fmt::format("has the entry [{}], which is not a string: a table in place of a tensor is "
                      "a list of strings, for the datatype BYTES",
                      i + 1));
    append_element(tensor.data, item.as_string());
  }
  return tensor;
}

}  // namespace flow
