// Reads values from deterministic CBOR. Every form that the writer would not have chosen is
// rejected.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/value/cbor.hpp"
#include "engine/value/cbor_forms.hpp"
#include "engine/value/utf8.hpp"

namespace flow {
namespace {

using namespace cbor;

constexpr size_t kReserveMax =
    1024;  // limits what an announced length may allocate before its items arrive
constexpr size_t kTensorRankMax = 64;

double from_half(uint16_t half) {
  int exponent = half >> 10 & 0x1f;
  double mantissa = half & 0x3ff;
  double value = exponent == 0    ? std::ldexp(mantissa, -24)
                 : exponent == 31 ? (mantissa == 0 ? HUGE_VAL : NAN)
                                  : std::ldexp(mantissa + 1024, exponent - 25);
  return half & 0x8000 ? -value : value;
}

// Reads until the first fault, which is kept in `fault()`. After that every read returns a default.
class CborReader {
 public:
  explicit CborReader(std::string_view bytes) : bytes_(bytes) {}

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
      fail("something else where a string is expected");
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
      case kMissing:
        return Value::missing();
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

  // An item takes at least one byte, so a larger count is invalid. Checked before anything is
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
    fail("a key that is not a string, an integer or a boolean");
    return {};
  }

  // ---- tagged

  Value tagged(uint64_t tag, int depth) {
    if (depth > kValueDepthMax) fail(fmt::format("nested deeper than {}", kValueDepthMax));
    if (failed()) return {};
    if (tag == kTensorTag) return tensor();
    if (tag == kFileTag) return file();
    if (tag == kRefTag || tag == kPlacesRefTag) return ref(depth, tag == kPlacesRefTag);
    fail("an unknown tag");
    return {};
  }

  uint64_t expect(Major major) {
    uint8_t first = byte();
    if (!failed() && first >> 5 != major) fail("an item of another kind is expected here");
    return failed() ? 0 : argument(first);
  }

  void expect_array(uint64_t count) {
    if (expect(kArray) != count) fail("an array of another length is expected here");
  }

  bool boolean() {
    uint8_t first = byte();
    if (first != kFalse && first != kTrue) fail("a boolean is expected here");
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

  Value ref(int depth, bool keeps_places) {
    Ref ref;
    ref.keeps_places = keeps_places;
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

// Item by item, regardless of nesting.
bool holds_tag(std::string_view bytes) {
  Head head;
  for (size_t at = 0; at < bytes.size();) {
    if (!take_head(bytes, at, head) || head.major == kTag) return true;
    bool is_string = head.major == kBytes || head.major == kText;
    if (!is_string) continue;
    if (bytes.size() - at < head.argument) return true;
    at += head.argument;
  }
  return false;
}

Result<Value> take_value(std::string_view& bytes) {
  CborReader reader(bytes);
  Value value = reader.value(0);
  if (reader.failed())
    return environment_error("the bytes are not a canonical value: " + reader.fault());
  bytes.remove_prefix(reader.at());
  return value;
}

Result<Value> decode_value(std::string_view bytes) {
  std::string_view rest = bytes;
  auto value = take_value(rest);
  if (value.ok() && !rest.empty())
    return environment_error(
        fmt::format("the bytes are not a canonical value: {} bytes follow it", rest.size()));
  return value;
}

}  // namespace flow
