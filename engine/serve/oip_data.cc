// The loop over the numbers of a request. It reads the text once and writes each number to its
// place in the tensor: a document in between would cost most of the time and several times the
// memory.
#include "engine/serve/oip_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "engine/serve/json/json_commas.hpp"
#include "engine/serve/json/json_number.hpp"
#include "engine/serve/json/json_text.hpp"
#include "engine/serve/json/number_list.hpp"
#include "engine/serve/json_fault.hpp"
#include "engine/value/byte_elements.hpp"
#include "engine/value/utf8.hpp"

namespace flow {
namespace {

constexpr size_t kNestingMax = 64;
constexpr size_t kDatatypeShownMax = 40;                 // bytes of one in an error
constexpr uint64_t kTensorBytesMax = uint64_t{1} << 40;  // as in kernels/tensor/tensor.cc

// The number of elements. A shape without any has a limit too, because a tensor has strides.
Result<size_t> shape_elements(const std::string& place, const std::vector<int64_t>& shape,
                              DType dtype) {
  bool is_empty = std::ranges::find(shape, 0) != shape.end();
  uint64_t product = 1, max = is_empty ? kTensorBytesMax / dtype_size(dtype) : kElementsMax;
  for (int64_t extent : shape) {
    auto factor = static_cast<uint64_t>(std::max<int64_t>(extent, 1));
    if (product > max / factor)
      return user_error(fmt::format("{}.shape is larger than {} may be ({} elements{})", place,
                                    is_empty ? "that of an empty tensor" : "a request", max,
                                    is_empty ? ", if each size 0 counts as 1" : ""));
    product *= factor;
  }
  return is_empty ? 0 : static_cast<size_t>(product);
}

const char* skip_space(const char* at) {
  while (is_json_space(*at)) at++;
  return at;
}

bool is_name(const char* at, std::string_view name) {
  return std::memcmp(at, name.data(), name.size()) == 0 && is_json_delimiter(at[name.size()]);
}

// Each element type reads one value; null if the text is not one of its values. `comma` is the next
// one, or null.

struct BooleanElement {
  using Type = uint8_t;
  const char* read(const char* at, const char*, Type& value) const {
    value = *at == 't';
    if (is_name(at, "true")) return at + 4;
    return is_name(at, "false") ? at + 5 : nullptr;
  }
};

template <typename T>
struct IntegerElement {
  using Type = T;
  int64_t min, max;
  const char* read(const char* at, const char* comma, Type& value) const {
    if (int64_t whole = 0; comma != nullptr && read_short_integer(at, comma, whole)) {
      if (whole < min || whole > max) return nullptr;
      value = static_cast<T>(whole);
      return comma;
    }
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    JsonNumber number = read_json_number(at);
    bool fits = number.is_whole && !number.is_long && number.digits <= kMost + number.is_negative;
    if (!fits) return nullptr;
    auto whole = static_cast<int64_t>(number.is_negative ? 0 - number.digits : number.digits);
    if (whole < min || whole > max) return nullptr;
    value = static_cast<T>(whole);
    return number.end;
  }
};

struct Unsigned64Element {
  using Type = uint64_t;
  const char* read(const char* at, const char* comma, Type& value) const {
    if (int64_t whole = 0; comma != nullptr && read_short_integer(at, comma, whole)) {
      value = static_cast<uint64_t>(whole);
      return whole < 0 ? nullptr : comma;
    }
    JsonNumber number = read_json_number(at);
    if (!number.is_whole || number.end == nullptr) return nullptr;
    value = number.digits;
    if (!number.is_long) return number.is_negative && value != 0 ? nullptr : number.end;
    // From 10^19 on; a minus is no digit for it.
    auto [end, error] = std::from_chars(number.begin, number.end, value);
    return error == std::errc() && end == number.end ? number.end : nullptr;
  }
};

struct FloatElement {
  using Type = float;
  const char* read(const char* at, const char*, Type& value) const {
    JsonNumber number = read_json_number(at);
    if (number.end == nullptr) return nullptr;
    value = nearest_float(number);
    return std::isfinite(value) ? number.end : nullptr;
  }
};

struct DoubleElement {
  using Type = double;
  const char* read(const char* at, const char*, Type& value) const {
    JsonNumber number = read_json_number(at);
    if (number.end == nullptr) return nullptr;
    value = nearest_double(number);
    return std::isfinite(value) ? number.end : nullptr;
  }
};

struct SmallFloatElement {
  using Type = uint16_t;
  uint16_t (*nearest)(double);
  uint16_t infinity;
  const char* read(const char* at, const char*, Type& value) const {
    JsonNumber number = read_json_number(at);
    if (number.end == nullptr) return nullptr;
    value = nearest(nearest_double(number));
    return (value & 0x7fff) == infinity ? nullptr : number.end;
  }
};

/// An empty list with the limits of the element type, if it has some of its own.
template <typename Element>
NumberList<typename Element::Type> list_within(const Element& element) {
  NumberList<typename Element::Type> list{nullptr, 0};
  if constexpr (requires { element.min; }) {
    list.min = element.min;
    list.max = element.max;
  }
  return list;
}

class ArrayReader {
 public:
  ArrayReader(const InputHead& input, std::string_view json, std::string_view data)
      : input_(input), json_(json), data_(data) {}

  /// `read_many` is for processors that can read the element's numbers faster than it; or null.
  template <typename Element>
  Result<Bytes> read(const Element& element,
                     ReadNumbers<typename Element::Type> read_many = nullptr);
  Result<Bytes> read_texts();

 private:
  /// Calls `read_some(at, count)` at a value, after the `count` before it. It reads this one or
  /// more, adds them to the count and returns the end of the last; null if the text at `at` is not
  /// one of its values.
  template <typename ReadSome>
  Status read_values(const ReadSome& read_some);
  /// Reads a value. `take(value, count)` gets it.
  template <typename Element, typename Take>
  const char* read_one(const Element& element, const char* at, size_t& count, const Take& take);
  /// Reads a value, and those that follow it after a comma. `take(value, count)` gets each.
  template <typename Element, typename Take>
  const char* read_run(const Element& element, JsonCommas& commas, const char*& at, size_t& count,
                       const Take& take);
  Error syntax(const char* at) const {
    return json_fault(json_, at, "this is not a value, a comma or the end of the array");
  }
  bool is_integer() const { return input_.datatype->kind == Datatype::Kind::integer; }
  /// `at` has no value of the element's type.
  Error fault(const char* at) const;
  std::string shown(const char* at) const;
  std::string place() const;

  const InputHead& input_;
  std::string_view json_, data_;
  std::array<size_t, kNestingMax> index_;  // of the current item, in each open array
  size_t depth_ = 0;
};

template <typename Element>
Result<Bytes> ArrayReader::read(const Element& element,
                                ReadNumbers<typename Element::Type> read_many) {
  using Type = typename Element::Type;
  // Each element takes two characters or more: a shape that promises more gets no memory.
  size_t room = input_.count <= data_.size() / 2 ? input_.count : 0;
  auto bytes = std::make_shared<std::string>(room * sizeof(Type), '\0');
  char* out = bytes->data();
  JsonCommas commas(json_.data() + json_.size());
  auto take = [&](Type value, size_t count) {
    if (count < room) std::memcpy(out + count * sizeof value, &value, sizeof value);
  };
  NumberList<Type> list = list_within(element);
  auto read_list = [&](const char* at, size_t& count) -> const char* {
    if (count >= room || at - json_.data() < kNumberReach) return nullptr;
    const size_t first = count;
    list.out = reinterpret_cast<Type*>(out) + first;
    list.room = room - first;
    const char* end = read_many(at, json_.data() + json_.size(), list, count);
    if (end != nullptr) index_[depth_ - 1] += count - first - 1;
    return end;
  };
  FLOW_TRY(read_values([&](const char*& at, size_t& count) {
    if (read_many == nullptr) return read_run(element, commas, at, count, take);
    const char* end = read_list(at, count);
    return end != nullptr ? end : read_one(element, at, count, take);
  }));
  return Bytes(std::move(bytes));
}

Result<Bytes> ArrayReader::read_texts() {
  auto bytes = std::make_shared<std::string>();
  FLOW_TRY(read_values([&](const char* at, size_t& count) {
    size_t begin = begin_element(*bytes);
    const char* end = read_json_text(at, json_.data() + json_.size(), *bytes);
    end_element(*bytes, begin);
    count++;
    return end;
  }));
  return Bytes(std::move(bytes));
}

template <typename Element, typename Take>
const char* ArrayReader::read_one(const Element& element, const char* at, size_t& count,
                                  const Take& take) {
  typename Element::Type value;
  const char* end = element.read(at, nullptr, value);
  if (end == nullptr) return nullptr;
  take(value, count);
  count++;
  return end;
}

template <typename Element, typename Take>
[[gnu::always_inline]] inline const char* ArrayReader::read_run(const Element& element,
                                                                JsonCommas& commas, const char*& at,
                                                                size_t& count, const Take& take) {
  const size_t first = count;
  const char* end;
  while (true) {
    const char* comma = commas.next(at);
    typename Element::Type value;
    end = element.read(at, comma, value);
    if (end == nullptr) break;
    take(value, count);
    count++;
    if (end != comma) break;
    const char* next = skip_space(comma + 1);
    if (*next == '[') break;
    at = next;
  }
  size_t begun = count - first + (end == nullptr ? 1 : 0);
  index_[depth_ - 1] += begun - 1;
  return end;
}

template <typename ReadSome>
[[gnu::always_inline]] inline Status ArrayReader::read_values(const ReadSome& read_some) {
  size_t count = 0;
  const char* at = data_.data();
  do {
    at = skip_space(at);
    if (*at == '[') {
      if (depth_ == kNestingMax)
        return user_error(fmt::format("{}.data of `{}` is nested deeper than {}", input_.place,
                                      input_.name, kNestingMax));
      index_[depth_++] = 0;
      at = skip_space(at + 1);
      if (*at != ']') continue;
    } else {
      const char* end = read_some(at, count);
      if (end == nullptr) return fault(at);
      at = skip_space(end);
    }
    while (depth_ > 0 && *at == ']') {
      at = skip_space(at + 1);
      depth_--;
    }
    if (depth_ == 0) break;
    if (*at != ',') return syntax(at);
    index_[depth_ - 1]++;
    at++;
  } while (true);
  if (count != input_.count)
    return user_error(fmt::format("{}.data has {} values, its shape needs {}", input_.place, count,
                                  input_.count));
  return {};
}

Error ArrayReader::fault(const char* at) const {
  const JsonNumber number = read_json_number(at);
  bool is_number = number.end != nullptr;
  bool is_value = is_number || *at == '"' || *at == '{' || is_name(at, "true") ||
                  is_name(at, "false") || is_name(at, "null");
  bool is_bytes = input_.datatype->kind == Datatype::Kind::bytes;
  if (!is_value || (is_bytes && *at == '"')) return syntax(at);
  if (is_bytes)
    return user_error(fmt::format("{} of `{}` is {}, but each value of BYTES must be a string",
                                  place(), input_.name, shown(at)));
  // Only a number can be beyond the limits of the datatype.
  if (!is_number && input_.datatype->kind != Datatype::Kind::boolean)
    return user_error(fmt::format("{} of `{}` is {}, but each value of {} must be a {}", place(),
                                  input_.name, shown(at), input_.datatype->name,
                                  is_integer() ? "whole number" : "number"));
  bool is_form = is_number && !number.is_whole && is_integer();
  return user_error(fmt::format("{} of `{}` is {}{}, but {} holds {}", place(), input_.name,
                                shown(at),
                                is_form ? ", written with a fraction or an exponent" : "",
                                input_.datatype->name, input_.datatype->values));
}

std::string ArrayReader::shown(const char* at) const {
  constexpr size_t kShown = 40;
  JsonNumber number = read_json_number(at);
  // A whole number of an integer is refused for its form, which is shown.
  if (number.end != nullptr && !number.is_whole && !is_integer())
    if (double value = nearest_double(number); std::isfinite(value))
      return fmt::format("{}", value);
  if (*at == '{') return "an object";
  std::string_view text = data_.substr(static_cast<size_t>(at - data_.data()));
  size_t size = 0;
  if (*at == '"') {
    for (size = 1; size < text.size() && text[size] != '"'; size++) size += text[size] == '\\';
    size++;
  } else {
    while (size < text.size() && !is_json_delimiter(text[size])) size++;
  }
  return to_line(text.substr(0, std::min(size, kShown)));
}

std::string ArrayReader::place() const {
  std::string place = input_.place + ".data";
  for (size_t i = 0; i < depth_; i++) place += fmt::format("[{}]", index_[i]);
  return place;
}

Status check_booleans(const InputHead& input, std::string_view data) {
  for (size_t i = 0; i < data.size(); i++) {
    auto value = static_cast<uint8_t>(data[i]);
    if (value > input.datatype->max)
      return user_error(fmt::format("{}.data[{}] of `{}` is {}, but {} holds {}", input.place, i,
                                    input.name, value, input.datatype->name,
                                    input.datatype->values));
  }
  return {};
}

}  // namespace

Result<InputHead> input_head(const std::string& place, const std::string& name,
                             const std::string& datatype, const std::vector<int64_t>& shape) {
  InputHead head{place, name, find_datatype(datatype), 0};
  if (head.datatype == nullptr)
    return user_error(fmt::format("{}.datatype `{}` is not one of {}", place,
                                  cut_text(datatype, kDatatypeShownMax), datatype_names()));
  auto count = shape_elements(place, shape, head.datatype->dtype);
  FLOW_TRY(count);
  head.count = *count;
  return head;
}

Result<Bytes> read_json_data(const InputHead& input, std::string_view json, std::string_view data) {
  constexpr uint16_t kHalfInfinity = 0x7c00, kBfloatInfinity = 0x7f80;
  ArrayReader reader(input, json, data);
  const Datatype& type = *input.datatype;
  if (type.kind == Datatype::Kind::bytes) return reader.read_texts();
  auto max = static_cast<int64_t>(type.max);  // of all but UINT64
  switch (type.dtype) {
    case DType::boolean:
      return reader.read(BooleanElement{});
    case DType::u8:
      return reader.read(IntegerElement<uint8_t>{type.min, max}, vector_reader<uint8_t>());
    case DType::i32:
      return reader.read(IntegerElement<int32_t>{type.min, max}, vector_reader<int32_t>());
    case DType::i64:
      if (is_unsigned64(type)) return reader.read(Unsigned64Element{});
      return reader.read(IntegerElement<int64_t>{type.min, max}, vector_reader<int64_t>());
    case DType::f16:
      return reader.read(SmallFloatElement{nearest_half, kHalfInfinity});
    case DType::bf16:
      return reader.read(SmallFloatElement{nearest_bfloat, kBfloatInfinity});
    case DType::f32:
      return reader.read(FloatElement{}, vector_reader<float>());
    case DType::f64:
      return reader.read(DoubleElement{}, vector_reader<double>());
  }
  return user_error(input.place + ".datatype is unknown");
}

Status check_byte_elements(const InputHead& input, const std::string& place,
                           std::string_view data) {
  auto size = size_of_elements(data, input.count);
  if (!size)
    return user_error(
        fmt::format("{} has {} bytes, which end before the {} elements of {} that its shape needs: "
                    "each is its number of bytes, 4 bytes little-endian, and these bytes",
                    place, data.size(), input.count, input.place));
  if (*size == data.size()) return {};
  return user_error(fmt::format("{} has {} bytes after the {} elements of {} that its shape needs",
                                place, data.size() - *size, input.count, input.place));
}

Result<Bytes> read_binary_data(const InputHead& input, const Bytes& data) {
  const Datatype& type = *input.datatype;
  if (type.kind == Datatype::Kind::bytes) {
    FLOW_TRY(check_byte_elements(input, "the binary data", *data));
    return data;
  }
  size_t needed = input.count * type.bytes;
  if (data->size() != needed)
    return user_error(
        fmt::format("{}.parameters.binary_data_size is {}, its shape and datatype need {} bytes",
                    input.place, data->size(), needed));
  // Of the other types, each element is a value of the tensor.
  if (type.kind == Datatype::Kind::boolean) FLOW_TRY(check_booleans(input, *data));
  return widen(type, data);
}

}  // namespace flow
