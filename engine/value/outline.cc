#include "engine/value/outline.hpp"

#include <utility>
#include <vector>

namespace flow {

Value outline_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::file: {
      const File& file = value.as_file();
      return Value::map({{Value("name"), Value(file.name)},
                         {Value("size"), Value(static_cast<int64_t>(file.size))}});
    }
    case Value::Kind::tensor: {
      std::vector<Value> shape;
      for (int64_t extent : value.as_tensor().shape) shape.emplace_back(extent);
      return Value::map({{Value("dtype"), Value(dtype_name(value.as_tensor().dtype))},
                         {Value("shape"), Value::list(std::move(shape))}});
    }
    case Value::Kind::table: {
      Value::Table table = value.as_table();
      for (Value& item : table.list) item = outline_of(item);
      for (auto& [key, field] : table.fields) field = outline_of(field);
      return Value(std::move(table));
    }
    default:
      return value;
  }
}

}  // namespace flow
