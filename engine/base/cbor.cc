// Deterministic CBOR (RFC 8949, section 4.2.1) of values: writing in one pass, reading that refuses
// every form the writer would not have chosen. The table of forms is in cbor.hpp.
#include "engine/base/cbor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/base/utf8.hpp"

namespace flow {
namespace {

enum Major : uint8_t { kUnsigned, kNegative, kBytes, kText, kArray, kMap, kTag, kSimple };
constexpr uint8_t kFalse = 0xf4, kTrue = 0xf5, kNull = 0xf6, kUndefined = 0xf7;
constexpr uint8_t kHalf = 0xf9, kSingle = 0xfa, kDouble = 0xfb;
constexpr uint64_t kTensorTag = 26220, kFileTag = 26221, kRefTag = 26222;
constexpr uint64_t kExecutable = 1, kFolder = 2, kAnonymous = 4;
constexpr size_t kReserveMax = 1024;  // what an announced length may allocate before its items came
constexpr size_t kTensorRankMax = 64;

// ---- floats

// The half-precision bits of `value`; false where half can't hold it exactly.
bool to_half(float value, uint16_t& out) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  int exponent = static_cast<int>((bits >> 23) & 0xff) - 127;
  uint32_t mantissa = bits & 0x7fffff;
  if ((bits & 0x7fffffff) == 0) {
    out = sign;
  } else if (exponent == 128) {
    if (mantissa != 0) return false;
    out = sign | 0x7c00;
  } else if (exponent >= -14 && exponent <= 15) {
    if ((mantissa & 0x1fff) != 0) return false;
    out = static_cast<uint16_t>(sign | (exponent + 15) << 10 | mantissa >> 13);
  } else if (exponent >= -24 && exponent < -14) {  // subnormal in half
    uint32_t full = mantissa | 0x800000;
    int shift = -exponent - 1;
    if ((full & ((1u << shift) - 1)) != 0) return false;
    out = static_cast<uint16_t>(sign | full >> shift);
  } else {
    return false;
  }
  return true;
}

double from_half(uint16_t half) {
  int exponent = half >> 10 & 0x1f;
  double mantissa = half & 0x3ff;
  double value = exponent == 0    ? std::ldexp(mantissa, -24)
                 : exponent == 31 ? (mantissa == 0 ? HUGE_VAL : NAN)
                                  : std::ldexp(mantissa + 1024, exponent - 25);
  return half & 0x8000 ? -value : value;
}

bool fits_single(double value) {
  if (std::isinf(value)) return true;
  return std::abs(value) <= 0x1.fffffep127 &&
         static_cast<double>(static_cast<float>(value)) == value;
}

// ---- writing

class Writer {
 public:
  Writer(std::string& out, bool for_key) : out_(out), for_key_(for_key) {}

  void value(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::nil:
        return byte(kUndefined);
      case Value::Kind::null:
        return byte(kNull);
      case Value::Kind::boolean:
        return byte(value.as_boolean() ? kTrue : kFalse);
      case Value::Kind::integer:
        return integer(value.as_integer());
      case Value::Kind::number:
        return number(value.as_number());
      case Value::Kind::string:
        return string(value.as_string());
      case Value::Kind::table:
        return table(value.as_table());
      case Value::Kind::tensor:
        return tensor(value.as_tensor());
      case Value::Kind::file:
        return file(value.as_file());
      case Value::Kind::ref:
        return ref(value.as_ref());
    }
  }

 private:
  void byte(uint8_t b) { out_.push_back(static_cast<char>(b)); }

  void big_endian(uint64_t n, int bytes) {
    char buffer[8];
    for (int i = 0; i < bytes; i++) buffer[i] = static_cast<char>(n >> 8 * (bytes - 1 - i));
    out_.append(buffer, static_cast<size_t>(bytes));
  }

  void head(Major major, uint64_t n) {
    auto first = static_cast<uint8_t>(major << 5);
    if (n < 24) return byte(static_cast<uint8_t>(first | n));
    int log = n <= 0xff ? 0 : n <= 0xffff ? 1 : n <= 0xffffffff ? 2 : 3;
    byte(static_cast<uint8_t>(first | (24 + log)));
    big_endian(n, 1 << log);
  }

  void integer(int64_t n) {
    if (n >= 0) return head(kUnsigned, static_cast<uint64_t>(n));
    head(kNegative, ~static_cast<uint64_t>(n));
  }

  void number(double n) {
    uint16_t half;
    if (std::isnan(n)) {
      byte(kHalf), big_endian(0x7e00, 2);
    } else if (!fits_single(n)) {
      byte(kDouble), big_endian(std::bit_cast<uint64_t>(n), 8);
    } else if (to_half(static_cast<float>(n), half)) {
      byte(kHalf), big_endian(half, 2);
    } else {
      byte(kSingle), big_endian(std::bit_cast<uint32_t>(static_cast<float>(n)), 4);
    }
  }

  void string(std::string_view text) {
    head(is_utf8(text) ? kText : kBytes, text.size());
    out_.append(text);
  }

  void digest(const Digest& digest) {
    head(kBytes, digest.bytes.size());
    out_.append(digest.view());
  }

  void table(const Value::Table& table) {
    if (table.fields.empty()) {
      head(kArray, table.list.size());
      for (const Value& item : table.list) value(item);
      return;
    }
    head(kMap, table.list.size() + table.fields.size());
    // Fields come as integers ascending, strings bytewise, booleans. Bytes want: integers from 0
    // up, then from -1 down, strings by kind and length, booleans.
    size_t zero = 0, strings = 0, booleans = 0;
    for (const auto& [key, item] : table.fields) {
      bool is_integer = key.kind() == Value::Kind::integer;
      zero += is_integer && key.as_integer() < 0;
      strings += is_integer;
      booleans += key.kind() != Value::Kind::boolean;
    }
    size_t at = zero;
    if (at < strings && table.fields[at].first.as_integer() == 0) field(table.fields[at++]);
    for (size_t i = 0; i < table.list.size(); i++) {
      integer(static_cast<int64_t>(i) + 1);
      value(table.list[i]);
    }
    while (at < strings) field(table.fields[at++]);
    for (size_t i = zero; i > 0; i--) field(table.fields[i - 1]);
    string_fields(table.fields.data() + strings, booleans - strings);
    for (at = booleans; at < table.fields.size(); at++) field(table.fields[at]);
  }

  using Field = std::pair<Value, Value>;

  void field(const Field& field) {
    value(field.first);
    value(field.second);
  }

  void string_fields(const Field* fields, size_t count) {
    struct Entry {
      bool text;
      std::string_view key;
      const Field* field;
    };
    auto before = [](const Entry& a, const Entry& b) {
      if (a.text != b.text) return b.text;
      if (a.key.size() != b.key.size()) return a.key.size() < b.key.size();
      return a.key < b.key;
    };
    constexpr size_t kOnStack = 16;
    Entry few[kOnStack];
    std::vector<Entry> many(count > kOnStack ? count : 0);
    Entry* entries = count > kOnStack ? many.data() : few;
    for (size_t i = 0; i < count; i++) {
      const std::string& key = fields[i].first.as_string();
      entries[i] = {is_utf8(key), key, fields + i};
    }
    std::sort(entries, entries + count, before);
    for (size_t i = 0; i < count; i++) {
      head(entries[i].text ? kText : kBytes, entries[i].key.size());
      out_.append(entries[i].key);
      value(entries[i].field->second);
    }
  }

  void tensor(const Tensor& tensor) {
    head(kTag, kTensorTag);
    head(kArray, 3);
    string(dtype_name(tensor.dtype));
    head(kArray, tensor.shape.size());
    for (int64_t dimension : tensor.shape) integer(dimension);
    digest(tensor.digest);
  }

  void file(const File& file) {
    head(kTag, kFileTag);
    head(kArray, 6);
    head(kUnsigned, (file.executable ? kExecutable : 0) | (file.is_folder ? kFolder : 0) |
                        (file.anonymous ? kAnonymous : 0));
    if (for_key_ && file.anonymous) {
      byte(kUndefined);
    } else {
      string(file.name);
    }
    head(kUnsigned, file.size);
    digest(file.digest);
    head(kArray, file.entries.size());
    for (const File::Entry& entry : file.entries) {
      head(kArray, 4);
      string(entry.path);
      byte(entry.executable ? kTrue : kFalse);
      head(kUnsigned, entry.size);
      digest(entry.digest);
    }
    if (for_key_) return byte(kUndefined);
    string(file.origin);
  }

  void ref(const Ref& ref) {
    head(kTag, kRefTag);
    head(kArray, 1 + 2 * ref.path.size());
    head(kUnsigned, ref.node);
    for (const PathStep& step : ref.path) {
      byte(step.each ? kTrue : kFalse);
      value(step.key);
    }
  }

  std::string& out_;
  bool for_key_;
};

// ---- reading

// Reads until the first fault, which stays in `fault()`; every reader after it returns a default.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  size_t at() const { return at_; }
  const std::string& fault() const { return fault_; }
  bool failed() const { return !fault_.empty(); }

  Value value(int depth) {
    uint8_t first = byte();
    if (failed()) return {};
    switch (static_cast<Major>(first >> 5)) {
      case kUnsigned:
        return integer(argument(first), false);
      case kNegative:
        return integer(argument(first), true);
      case kBytes:
      case kText:
        return Value(string(first));
      case kArray:
        return array(argument(first), depth + 1);
      case kMap:
        return map(argument(first), depth + 1);
      case kTag:
        return tagged(argument(first), depth + 1);
      case kSimple:
        return simple(first);
    }
    return {};
  }

 private:
  void fail(std::string why) {
    if (fault_.empty()) fault_ = fmt::format("{} at byte {}", why, at_);
  }

  uint8_t byte() {
    if (at_ == bytes_.size()) fail("it ends early");
    return failed() ? 0 : static_cast<uint8_t>(bytes_[at_++]);
  }

  uint64_t big_endian(int count) {
    if (bytes_.size() - at_ < static_cast<size_t>(count)) fail("it ends early");
    if (failed()) return 0;
    uint64_t n = 0;
    for (int i = 0; i < count; i++) n = n << 8 | static_cast<uint8_t>(bytes_[at_++]);
    return n;
  }

  uint64_t argument(uint8_t first) {
    uint8_t low = first & 31;
    if (low < 24) return low;
    if (low > 27) {
      fail("an indefinite or reserved length");
      return 0;
    }
    int log = low - 24;
    uint64_t n = big_endian(1 << log);
    constexpr uint64_t kLeast[] = {24, 0x100, 0x10000, 0x100000000};
    if (n < kLeast[log]) fail("a number wider than needed");
    return n;
  }

  Value integer(uint64_t n, bool negative) {
    if (n > INT64_MAX) fail("an integer beyond 64 bits");
    return Value(negative ? -1 - static_cast<int64_t>(n) : static_cast<int64_t>(n));
  }

  std::string_view raw(uint64_t size) {
    if (size > bytes_.size() - at_) fail("it ends early");
    if (failed()) return {};
    std::string_view text = bytes_.substr(at_, size);
    at_ += size;
    return text;
  }

  std::string_view string(uint8_t first) {
    int major = first >> 5;
    if (major != kBytes && major != kText) {
      fail("no string where one belongs");
      return {};
    }
    std::string_view text = raw(argument(first));
    if (is_utf8(text) != (major == kText)) fail("text as bytes or bytes as text");
    return text;
  }

  Value simple(uint8_t first) {
    switch (first) {
      case kFalse:
        return Value(false);
      case kTrue:
        return Value(true);
      case kNull:
        return Value::null();
      case kUndefined:
        return {};
      case kHalf:
        return half(static_cast<uint16_t>(big_endian(2)));
      case kSingle:
        return single(std::bit_cast<float>(static_cast<uint32_t>(big_endian(4))));
      case kDouble:
        return wide(std::bit_cast<double>(big_endian(8)));
      default:
        fail("an unknown simple value");
        return {};
    }
  }

  Value half(uint16_t bits) {
    double number = from_half(bits);
    if (std::isnan(number) && bits != 0x7e00) fail("a NaN of another form");
    return Value(number);
  }

  Value single(float number) {
    uint16_t bits;
    if (std::isnan(number) || to_half(number, bits)) fail("a number wider than needed");
    return Value(static_cast<double>(number));
  }

  Value wide(double number) {
    if (std::isnan(number) || fits_single(number)) fail("a number wider than needed");
    return Value(number);
  }

  // An item takes a byte at least, so a longer count is a lie; checked before anything is
  // allocated.
  bool countable(uint64_t count, uint64_t bytes_each, int depth) {
    if (depth > kValueDepthMax) fail(fmt::format("nested deeper than {}", kValueDepthMax));
    if (count > (bytes_.size() - at_) / bytes_each) fail("it ends early");
    return !failed();
  }

  Value array(uint64_t count, int depth) {
    if (!countable(count, 1, depth)) return {};
    std::vector<Value> items;
    items.reserve(std::min<uint64_t>(count, kReserveMax));
    for (uint64_t i = 0; i < count && !failed(); i++) items.push_back(value(depth));
    return Value::list(std::move(items));
  }

  Value map(uint64_t count, int depth) {
    if (!countable(count, 2, depth)) return {};
    Value::Table table;
    table.fields.reserve(std::min<uint64_t>(count, kReserveMax));
    std::string_view previous;
    for (uint64_t i = 0; i < count && !failed(); i++) {
      size_t start = at_;
      Value key = this->key();
      std::string_view key_bytes = bytes_.substr(start, at_ - start);
      if (i > 0 && key_bytes <= previous) fail("keys out of order");
      previous = key_bytes;
      Value item = value(depth);
      if (item.is_nil()) fail("a key without a value");
      bool listed = key.kind() == Value::Kind::integer &&
                    key.as_integer() == static_cast<int64_t>(table.list.size()) + 1;
      if (listed) {
        table.list.push_back(std::move(item));
      } else {
        table.fields.emplace_back(std::move(key), std::move(item));
      }
    }
    if (table.fields.empty()) fail("a list as a map");
    return failed() ? Value() : Value(std::move(table));
  }

  Value key() {
    uint8_t first = byte();
    int major = first >> 5;
    if (failed()) return {};
    if (major == kUnsigned) return integer(argument(first), false);
    if (major == kNegative) return integer(argument(first), true);
    if (major == kBytes || major == kText) return Value(string(first));
    if (first == kFalse || first == kTrue) return Value(first == kTrue);
    fail("a key that is no string, integer or boolean");
    return {};
  }

  // ---- tagged

  Value tagged(uint64_t tag, int depth) {
    if (depth > kValueDepthMax) fail(fmt::format("nested deeper than {}", kValueDepthMax));
    if (failed()) return {};
    if (tag == kTensorTag) return tensor();
    if (tag == kFileTag) return file();
    if (tag == kRefTag) return ref(depth);
    fail("an unknown tag");
    return {};
  }

  uint64_t expect(Major major) {
    uint8_t first = byte();
    if (!failed() && first >> 5 != major) fail("another kind of item belongs here");
    return failed() ? 0 : argument(first);
  }

  void expect_array(uint64_t count) {
    if (expect(kArray) != count) fail("an array of another length belongs here");
  }

  bool boolean() {
    uint8_t first = byte();
    if (first != kFalse && first != kTrue) fail("a boolean belongs here");
    return first == kTrue;
  }

  std::string text() { return std::string(string(byte())); }

  Digest digest() {
    Digest digest;
    std::string_view bytes = raw(expect(kBytes));
    if (!Digest::from_bytes(bytes, digest)) fail("a digest of another length");
    return digest;
  }

  Value tensor() {
    Tensor tensor;
    expect_array(3);
    if (!parse_dtype(text(), tensor.dtype)) fail("an unknown dtype");
    uint64_t rank = expect(kArray);
    if (rank > kTensorRankMax) fail("a tensor of too many dimensions");
    uint64_t bytes = dtype_size(tensor.dtype);
    bool empty = false;
    for (uint64_t i = 0; i < rank && !failed(); i++) {
      uint64_t dimension = expect(kUnsigned);
      if (dimension > INT64_MAX) fail("a tensor beyond 64 bits");
      empty = empty || dimension == 0;
      if (dimension > 0 && __builtin_mul_overflow(bytes, dimension, &bytes))
        bytes = UINT64_MAX;  // harmless where another dimension is 0
      tensor.shape.push_back(static_cast<int64_t>(dimension));
    }
    if (!empty && bytes > INT64_MAX) fail("a tensor beyond 64 bits");
    tensor.digest = digest();
    return failed() ? Value() : Value(std::move(tensor));
  }

  Value file() {
    File file;
    expect_array(6);
    uint64_t flags = expect(kUnsigned);
    if (flags > (kExecutable | kFolder | kAnonymous)) fail("an unknown flag of a file");
    file.executable = flags & kExecutable;
    file.is_folder = flags & kFolder;
    file.anonymous = flags & kAnonymous;
    file.name = text();
    file.size = expect(kUnsigned);
    file.digest = digest();
    uint64_t count = expect(kArray);
    if (!countable(count, 1, 0)) return {};
    for (uint64_t i = 0; i < count && !failed(); i++) {
      File::Entry entry;
      expect_array(4);
      entry.path = text();
      entry.executable = boolean();
      entry.size = expect(kUnsigned);
      entry.digest = digest();
      file.entries.push_back(std::move(entry));
    }
    file.origin = text();
    return failed() ? Value() : Value(std::move(file));
  }

  Value ref(int depth) {
    Ref ref;
    uint64_t count = expect(kArray);
    if (!countable(count, 1, depth)) return {};
    if (count % 2 == 0) fail("a ref of another length");
    uint64_t node = expect(kUnsigned);
    if (node > UINT32_MAX) fail("a node beyond 32 bits");
    ref.node = static_cast<uint32_t>(node);
    for (uint64_t i = 1; i < count && !failed(); i += 2) {
      bool each = boolean();
      ref.path.push_back({each, value(depth)});
    }
    return failed() ? Value() : Value(std::move(ref));
  }

  std::string_view bytes_;
  size_t at_ = 0;
  std::string fault_;
};

}  // namespace

void append_value(const Value& value, std::string& out) { Writer(out, false).value(value); }

std::string encode_value(const Value& value) {
  std::string out;
  append_value(value, out);
  return out;
}

std::string encode_value_for_key(const Value& value) {
  std::string out;
  Writer(out, true).value(value);
  return out;
}

Result<Value> take_value(std::string_view& bytes) {
  Reader reader(bytes);
  Value value = reader.value(0);
  if (reader.failed())
    return environment_error("the bytes are no canonical value: " + reader.fault());
  bytes.remove_prefix(reader.at());
  return value;
}

Result<Value> decode_value(std::string_view bytes) {
  std::string_view rest = bytes;
  auto value = take_value(rest);
  if (value.ok() && !rest.empty())
    return environment_error(
        fmt::format("the bytes are no canonical value: {} bytes follow it", rest.size()));
  return value;
}

}  // namespace flow
