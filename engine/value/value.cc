// Construction, lookup and comparison of values. Encoding as bytes is in cbor_*.cc, as JSON in
// json.cc.
#include "flow/value.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/value/value_blobs.hpp"

namespace flow {
namespace {

constexpr struct {
  const char* name;
  size_t size;
} kDTypes[] = {{"f32", 4}, {"f16", 2}, {"bf16", 2}, {"f64", 8},
               {"i64", 8}, {"i32", 4}, {"u8", 1},   {"bool", 1}};

// Order of key kinds within a table: integers, strings, booleans.
int key_rank(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::integer:
      return 0;
    case Value::Kind::string:
      return 1;
    case Value::Kind::boolean:
      return 2;
    default:
      return -1;
  }
}

int compare_keys(const Value& a, const Value& b) {
  int rank_a = key_rank(a), rank_b = key_rank(b);
  if (rank_a != rank_b) return rank_a < rank_b ? -1 : 1;
  if (rank_a == 0) {
    int64_t x = a.as_integer(), y = b.as_integer();
    return x < y ? -1 : x > y;
  }
  if (rank_a == 1) return a.as_string().compare(b.as_string());
  return int{a.as_boolean()} - int{b.as_boolean()};
}

using Field = std::pair<Value, Value>;

bool key_less(const Field& a, const Field& b) { return compare_keys(a.first, b.first) < 0; }

// A key as Lua normalizes it: 2.0 is 2. An invalid key is a defect of the caller.
void settle_key(Value& key) {
  if (key.kind() == Value::Kind::number) {
    double number = key.as_number();
    bool fits = number >= -0x1p63 && number < 0x1p63 && std::trunc(number) == number;
    FLOW_CHECK(fits && "a table's key is a string, an integer or a boolean");
    key = Value(static_cast<int64_t>(number));
  }
  FLOW_CHECK(key_rank(key) >= 0 && "a table's key is a string, an integer or a boolean");
}

// Sorts; of equal keys the last one is kept.
void sort_fields(std::vector<Field>& fields) {
  bool sorted = true;
  for (size_t i = 1; i < fields.size() && sorted; i++) sorted = key_less(fields[i - 1], fields[i]);
  if (sorted) return;
  std::stable_sort(fields.begin(), fields.end(), key_less);
  size_t kept = 0;
  for (size_t i = 0; i < fields.size(); i++) {
    bool replaced = i + 1 < fields.size() && !key_less(fields[i], fields[i + 1]);
    if (replaced) continue;
    if (kept != i) fields[kept] = std::move(fields[i]);
    kept++;
  }
  fields.resize(kept);
}

// Fields 1..n belong to the list.
void move_into_list(Value::Table& table) {
  size_t kept = 0;
  for (size_t i = 0; i < table.fields.size(); i++) {
    auto& [key, value] = table.fields[i];
    if (key.kind() == Value::Kind::integer && key.as_integer() >= 1) {
      auto index = static_cast<uint64_t>(key.as_integer());
      if (index <= table.list.size()) {
        table.list[index - 1] = std::move(value);
        continue;
      }
      if (index == table.list.size() + 1 && !value.is_nil()) {
        table.list.push_back(std::move(value));
        continue;
      }
    }
    if (value.is_nil()) continue;
    if (kept != i) table.fields[kept] = std::move(table.fields[i]);
    kept++;
  }
  table.fields.resize(kept);
}

// A list with holes and fields: everything after the first hole becomes a field. A pure list keeps
// its nils, because positions matter in a list of arguments.
void close_holes(Value::Table& table) {
  auto& list = table.list;
  auto hole = std::find_if(list.begin(), list.end(), [](const Value& v) { return v.is_nil(); });
  if (hole == list.end()) return;
  for (auto item = hole; item != list.end(); ++item) {
    if (item->is_nil()) continue;
    table.fields.emplace_back(Value(int64_t{item - list.begin()} + 1), std::move(*item));
  }
  list.erase(hole, list.end());
  sort_fields(table.fields);
}

bool same_number(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool same_ref(const Ref& a, const Ref& b) {
  return a.node == b.node && a.keeps_places == b.keeps_places &&
         std::equal(a.path.begin(), a.path.end(), b.path.begin(), b.path.end(),
                    [](const PathStep& x, const PathStep& y) {
                      return x.each == y.each && x.key == y.key;
                    });
}

bool same_file(const File& a, const File& b) {
  return a.digest == b.digest && a.name == b.name && a.executable == b.executable &&
         a.is_folder == b.is_folder && a.anonymous == b.anonymous && a.size == b.size;
}

}  // namespace

const char* dtype_name(DType dtype) {
  auto index = static_cast<size_t>(dtype);
  FLOW_CHECK(index < std::size(kDTypes));
  return kDTypes[index].name;
}

size_t dtype_size(DType dtype) {
  auto index = static_cast<size_t>(dtype);
  FLOW_CHECK(index < std::size(kDTypes));
  return kDTypes[index].size;
}

bool parse_dtype(std::string_view name, DType& out) {
  for (size_t i = 0; i < std::size(kDTypes); i++) {
    if (name != kDTypes[i].name) continue;
    out = static_cast<DType>(i);
    return true;
  }
  return false;
}

Value::Value(Ref v) : state_(std::make_shared<const Ref>(std::move(v))) {}

Value::Value(Table v) {
  if (!v.fields.empty()) {
    for (auto& [key, value] : v.fields) settle_key(key);
    sort_fields(v.fields);
    move_into_list(v);
    if (!v.fields.empty()) close_holes(v);
  }
  state_ = std::make_shared<const Table>(std::move(v));
}

Value Value::null() {
  Value value;
  value.state_ = Null{};
  return value;
}

Value Value::missing() {
  Value value;
  value.state_ = Missing{};
  return value;
}

Value Value::list(std::vector<Value> items) { return Value(Table{std::move(items), {}}); }

Value Value::map(std::vector<std::pair<Value, Value>> fields) {
  return Value(Table{{}, std::move(fields)});
}

bool Value::truthy() const {
  switch (kind()) {
    case Kind::nil:
    case Kind::null:
    case Kind::missing:
      return false;
    case Kind::boolean:
      return as_boolean();
    default:
      return true;
  }
}

double Value::as_number() const {
  if (kind() == Kind::integer) return static_cast<double>(as_integer());
  return std::get<double>(state_);
}

const Value* Value::find(const Value& key) const {
  if (kind() != Kind::table || key_rank(key) < 0) return nullptr;
  const Table& table = as_table();
  if (key.kind() == Kind::integer) {
    int64_t index = key.as_integer();
    if (index >= 1 && static_cast<uint64_t>(index) <= table.list.size()) {
      const Value& item = table.list[static_cast<size_t>(index) - 1];
      return item.is_nil() ? nullptr : &item;
    }
  }
  auto at = std::lower_bound(table.fields.begin(), table.fields.end(), key,
                             [](const Field& field, const Value& wanted) {
                               return compare_keys(field.first, wanted) < 0;
                             });
  if (at == table.fields.end() || compare_keys(at->first, key) != 0) return nullptr;
  return &at->second;
}

const Value* Value::find(std::string_view key) const {
  if (kind() != Kind::table) return nullptr;
  const Table& table = as_table();
  auto before = [](const Field& field, std::string_view wanted) {
    int rank = key_rank(field.first);
    return rank < 1 || (rank == 1 && std::string_view(field.first.as_string()) < wanted);
  };
  auto at = std::lower_bound(table.fields.begin(), table.fields.end(), key, before);
  if (at == table.fields.end() || at->first.kind() != Kind::string || at->first.as_string() != key)
    return nullptr;
  return &at->second;
}

bool Value::operator==(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::nil:
    case Kind::null:
    case Kind::missing:
      return true;
    case Kind::boolean:
      return as_boolean() == other.as_boolean();
    case Kind::integer:
      return as_integer() == other.as_integer();
    case Kind::number:
      return same_number(as_number(), other.as_number());
    case Kind::string:
      return as_string() == other.as_string();
    case Kind::table: {
      const Table &a = as_table(), &b = other.as_table();
      return &a == &b || (a.list == b.list && a.fields == b.fields);
    }
    case Kind::tensor: {
      const Tensor &a = as_tensor(), &b = other.as_tensor();
      return a.dtype == b.dtype && a.shape == b.shape && a.digest == b.digest;
    }
    case Kind::file:
      return same_file(as_file(), other.as_file());
    case Kind::ref:
      return same_ref(as_ref(), other.as_ref());
  }
  return false;
}

void collect_blobs(const Value& value, std::vector<Digest>& out) {
  for_each_blob(value, [&](const Digest& digest, auto, auto) { out.push_back(digest); });
}

}  // namespace flow
