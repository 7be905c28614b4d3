// Writing values as deterministic CBOR (RFC 8949, section 4.2.1), in one pass.
#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/value/cbor.hpp"
#include "engine/value/cbor_forms.hpp"
#include "engine/value/utf8.hpp"

namespace flow {
namespace {

using namespace cbor;

class CborWriter {
 public:
  CborWriter(std::string& out, bool for_key) : out_(out), for_key_(for_key) {}

  void list_header(size_t items) { head(kArray, items); }

  void value(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::nil:
        return byte(kUndefined);
      case Value::Kind::null:
        return byte(kNull);
      case Value::Kind::missing:
        return byte(kMissing);
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
      list_header(table.list.size());
      for (const Value& item : table.list) value(item);
      return;
    }
    head(kMap, table.list.size() + table.fields.size());
    // Input order of fields: integers ascending, strings bytewise, booleans. Order of the bytes:
    // integers from 0 up, then from -1 down, strings by kind and length, booleans.
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
    head(kTag, ref.keeps_places ? kPlacesRefTag : kRefTag);
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

}  // namespace

void append_value(const Value& value, std::string& out) { CborWriter(out, false).value(value); }

void append_list_header(size_t items, std::string& out) {
  CborWriter(out, false).list_header(items);
}

std::string encode_value(const Value& value) {
  std::string out;
  append_value(value, out);
  return out;
}

std::string encode_value_for_key(const Value& value) {
  std::string out;
  CborWriter(out, true).value(value);
  return out;
}

}  // namespace flow
