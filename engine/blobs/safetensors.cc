// Reading and writing the header of a safetensors file.
#include "engine/blobs/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <unordered_set>

#include "engine/value/utf8.hpp"

namespace flow {
namespace {

constexpr size_t kLengthSize = 8;
constexpr size_t kAlignment = 8;
constexpr size_t kRankMax = 64;  // of what is read; a tensor of flow has fewer
constexpr size_t kNameShown = 80;
constexpr int64_t kCountMax = int64_t{1} << 60;
constexpr const char* kMetadata = "__metadata__";

// The reference library's order of types: tensors with later ones are written first.
constexpr struct {
  const char* name;
  DType dtype;
} kTypes[] = {{"BOOL", DType::boolean}, {"U8", DType::u8},   {"F16", DType::f16},
              {"BF16", DType::bf16},    {"I32", DType::i32}, {"F32", DType::f32},
              {"F64", DType::f64},      {"I64", DType::i64}};

// The types of others whose elements are whole bytes.
constexpr struct {
  const char* name;
  uint64_t bytes;
} kForeignTypes[] = {{"I8", 1},        {"I16", 2},         {"U16", 2},         {"U32", 4},
                     {"U64", 8},       {"F8_E4M3", 1},     {"F8_E5M2", 1},     {"F8_E8M0", 1},
                     {"F8_E4M3FN", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"C64", 8}};

size_t rank_of(DType dtype) {
  size_t at = 0;
  while (kTypes[at].dtype != dtype) at++;
  return at;
}

bool dtype_of(std::string_view name, DType& out) {
  for (const auto& type : kTypes) {
    if (name != type.name) continue;
    out = type.dtype;
    return true;
  }
  return false;
}

std::string shown(const std::string& name) {
  if (name.size() <= kNameShown) return "`" + name + "`";
  return "`" + to_utf8(name.substr(0, kNameShown)) + "…`";
}

// The bytes of an element; 0 of a type that is not known.
uint64_t element_bytes(const SafetensorsEntry& entry) {
  if (entry.foreign_type.empty()) return dtype_size(entry.dtype);
  for (const auto& type : kForeignTypes)
    if (entry.foreign_type == type.name) return type.bytes;
  return 0;
}

const char* type_of(const SafetensorsEntry& entry) {
  return entry.foreign_type.empty() ? dtype_name(entry.dtype) : entry.foreign_type.c_str();
}

// The bytes of a tensor; false where they are too many for any file.
bool size_of(const SafetensorsEntry& entry, uint64_t& out) {
  uint64_t count = element_bytes(entry);
  if (count == 0) {
    out = entry.end - entry.begin;
    return true;
  }
  bool is_empty = false;
  for (int64_t size : entry.shape) {
    if (size < 0) return false;
    is_empty = is_empty || size == 0;
    auto length = static_cast<uint64_t>(std::max<int64_t>(size, 1));
    if (count > static_cast<uint64_t>(kCountMax) / length) return false;
    count *= length;
  }
  out = is_empty ? 0 : count;
  return true;
}

// ---- reading

// The one JSON object that a header is: names to tensors, and a table of texts. Any other value is
// a further field of a tensor, which is passed over without being parsed.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  Status read(SafetensorsHeader& out) {
    if (text_.empty() || text_[0] != '{')
      return wrong("the header does not begin with `{`: it is not a safetensors file");
    std::unordered_set<std::string> names;
    FLOW_TRY(fields([&](std::string name) -> Status {
      if (!names.insert(name).second)
        return wrong(fmt::format("the name {} occurs twice", shown(name)));
      if (name == kMetadata) return null() ? Status() : metadata(out);
      SafetensorsEntry entry;
      entry.name = std::move(name);
      FLOW_TRY(tensor(entry));
      out.tensors.push_back(std::move(entry));
      return {};
    }));
    skip();
    if (at_ != text_.size()) return wrong("data follows the header's closing `}`");
    return {};
  }

 private:
  Error wrong(const std::string& what) const {
    return user_error(fmt::format("{} (byte {} of the header)", what, at_));
  }

  void skip() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      at_++;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    at_++;
    return true;
  }
  Status expect(char c, const char* after) {
    if (take(c)) return {};
    return wrong(fmt::format("`{}` is missing after {}", c, after));
  }

  // { name: … }, each handed to `read` at its value.
  template <typename Read>
  Status fields(const Read& read) {
    FLOW_TRY(expect('{', "a name"));
    if (take('}')) return {};
    do {
      std::string name;
      FLOW_TRY(string(name));
      FLOW_TRY(expect(':', "a name"));
      FLOW_TRY(read(std::move(name)));
    } while (take(','));
    return expect('}', "the last field");
  }

  bool null() {
    skip();
    bool found = text_.substr(at_, 4) == "null";
    if (found) at_ += 4;
    return found;
  }

  // Goes past a value of any kind. What is open is counted, so that depth costs nothing.
  Status pass_value() {
    std::string open;  // the brackets that close what is open
    do {
      skip();
      if (at_ >= text_.size()) return wrong("a value does not end");
      char c = text_[at_];
      if (c == '"') {
        std::string unused;
        FLOW_TRY(string(unused));
      } else if (c == '{' || c == '[') {
        open += c == '{' ? '}' : ']';
        at_++;
      } else if (!open.empty() && (c == open.back() || c == ',' || c == ':')) {
        if (c == open.back()) open.pop_back();
        at_++;
      } else {
        size_t first = at_;
        while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
                                      text_[at_] == '-' || text_[at_] == '+' || text_[at_] == '.'))
          at_++;
        if (at_ == first) return wrong("this is not JSON");
      }
    } while (!open.empty());
    return {};
  }

  Status metadata(SafetensorsHeader& out) {
    std::unordered_set<std::string> names;
    FLOW_TRY(fields([&](std::string name) -> Status {
      if (!names.insert(name).second)
        return wrong(fmt::format("the metadata has {} twice", shown(name)));
      std::string text;
      skip();
      if (at_ >= text_.size() || text_[at_] != '"')
        return wrong(fmt::format("the metadata {} is not a string", shown(name)));
      FLOW_TRY(string(text));
      out.metadata.emplace_back(std::move(name), std::move(text));
      return {};
    }));
    std::sort(out.metadata.begin(), out.metadata.end());
    return {};
  }

  Status tensor(SafetensorsEntry& entry) {
    bool has_dtype = false, has_shape = false, has_place = false;
    FLOW_TRY(fields([&](const std::string& field) -> Status {
      bool* seen = field == "dtype"          ? &has_dtype
                   : field == "shape"        ? &has_shape
                   : field == "data_offsets" ? &has_place
                                             : nullptr;
      if (seen == nullptr) return pass_value();
      if (*seen) return wrong(fmt::format("{} has `{}` twice", shown(entry.name), field));
      *seen = true;
      if (seen == &has_dtype) return dtype(entry);
      std::vector<int64_t> numbers;
      FLOW_TRY(integers(numbers, entry.name));
      if (seen == &has_shape) {
        entry.shape = std::move(numbers);
        return {};
      }
      if (numbers.size() != 2 || numbers[0] > numbers[1])
        return wrong(
            fmt::format("the data_offsets of {} are not a begin and an end", shown(entry.name)));
      entry.begin = static_cast<uint64_t>(numbers[0]);
      entry.end = static_cast<uint64_t>(numbers[1]);
      return {};
    }));
    if (has_dtype && has_shape && has_place) return {};
    return wrong(fmt::format("{} lacks `{}`", shown(entry.name),
                             !has_dtype   ? "dtype"
                             : !has_shape ? "shape"
                                          : "data_offsets"));
  }

  Status dtype(SafetensorsEntry& entry) {
    std::string name;
    FLOW_TRY(string(name));
    if (name.empty()) return wrong(fmt::format("{} has no type", shown(entry.name)));
    if (!dtype_of(name, entry.dtype)) entry.foreign_type = std::move(name);
    return {};
  }

  Status integers(std::vector<int64_t>& out, const std::string& of) {
    FLOW_TRY(expect('[', "shape or data_offsets"));
    if (take(']')) return {};
    do {
      skip();
      size_t first = at_;
      int64_t number = 0;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
        int digit = text_[at_] - '0';
        if (number > (INT64_MAX - digit) / 10)
          return wrong(fmt::format("a number of {} is too large", shown(of)));
        number = number * 10 + digit;
        at_++;
      }
      bool leads_with_zero = at_ - first > 1 && text_[first] == '0';
      if (at_ == first || leads_with_zero)
        return wrong(
            fmt::format("a size or offset of {} is not a whole number of 0 or more", shown(of)));
      if (out.size() == kRankMax)
        return wrong(fmt::format("{} has more than {} dimensions", shown(of), kRankMax));
      out.push_back(number);
    } while (take(','));
    return expect(']', "the last number");
  }

  Status string(std::string& out) {
    FLOW_TRY(expect('"', "`{`, `,` or `:`"));
    while (true) {
      size_t plain = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20)
        at_++;
      out += text_.substr(plain, at_ - plain);
      if (at_ >= text_.size()) return wrong("a string does not end");
      char c = text_[at_++];
      if (c == '"') return {};
      if (c != '\\') return wrong("a string has a control character in it");
      FLOW_TRY(escape(out));
    }
  }

  Status escape(std::string& out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) return wrong("a string does not end");
    char c = text_[at_++];
    size_t known = kLetters.find(c);
    if (known != kLetters.npos) {
      out += kMeant[known];
      return {};
    }
    uint32_t code = 0;
    if (c != 'u' || !hex(code)) return wrong("a string has an escape that JSON does not know");
    bool is_first = code >= 0xD800 && code < 0xDC00;
    if (is_first) {
      uint32_t second = 0;
      bool is_pair = text_.substr(at_, 2) == "\\u";
      if (is_pair) at_ += 2;
      if (!is_pair || !hex(second) || second < 0xDC00 || second > 0xDFFF)
        return wrong("a string has half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
      return wrong("a string has half of a surrogate pair");
    }
    append_utf8(out, code);
    return {};
  }

  bool hex(uint32_t& out) {
    constexpr size_t kDigits = 4;
    if (text_.size() - at_ < kDigits) return false;
    for (size_t i = 0; i < kDigits; i++) {
      char c = text_[at_ + i];
      uint32_t digit = c >= '0' && c <= '9'   ? static_cast<uint32_t>(c - '0')
                       : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a') + 10
                       : c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A') + 10
                                              : 16;
      if (digit == 16) return false;
      out = out * 16 + digit;
    }
    at_ += kDigits;
    return true;
  }

  static void append_utf8(std::string& out, uint32_t code) {
    auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
    if (code < 0x80) {
      add(code);
    } else if (code < 0x800) {
      add(0xC0 | code >> 6);
      add(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      add(0xE0 | code >> 12);
      add(0x80 | (code >> 6 & 0x3F));
      add(0x80 | (code & 0x3F));
    } else {
      add(0xF0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3F));
      add(0x80 | (code >> 6 & 0x3F));
      add(0x80 | (code & 0x3F));
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

// Tensors are consecutive and fill `room`.
Status check_places(SafetensorsHeader& header, uint64_t room) {
  auto& tensors = header.tensors;
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    if (tensor.begin != at)
      return user_error(fmt::format(
          "the bytes of {} begin at {}, and those before it end at {}: they {}", shown(tensor.name),
          tensor.begin, at, tensor.begin < at ? "overlap" : "leave a gap"));
    uint64_t size = 0;
    if (!size_of(tensor, size) || tensor.end - tensor.begin != size)
      return user_error(fmt::format("{} has {} bytes, which does not match {} of shape {}",
                                    shown(tensor.name), tensor.end - tensor.begin, type_of(tensor),
                                    shape_text(tensor.shape)));
    at = tensor.end;
  }
  if (at > room)
    return user_error(fmt::format(
        "its tensors have {} bytes, and {} follow the header: it was cut short; copy it again", at,
        room));
  if (at < room)
    return user_error(
        fmt::format("its tensors have {} bytes, and {} follow the header: it has {} too many", at,
                    room, room - at));
  return {};
}

// ---- writing

void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    size_t known = kEscaped.find(c);
    if (known != kEscaped.npos) {
      out += '\\';
      out += kLetters[known];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += c;
    }
  }
  out += '"';
}

Status check_text(const std::string& text, const char* what) {
  if (is_utf8(text)) return {};
  return user_error(fmt::format("{} {} is not UTF-8, which JSON needs: use base64 or other letters",
                                what, shown(to_utf8(text))));
}

}  // namespace

Result<SafetensorsHeader> read_safetensors(std::string_view head, uint64_t file_size) {
  if (file_size < kLengthSize || head.size() < kLengthSize)
    return user_error(
        fmt::format("it has {} bytes: a safetensors file begins with 8 that give its header's "
                    "length",
                    file_size));
  uint64_t length = 0;
  for (size_t i = kLengthSize; i-- > 0;) length = length << 8 | static_cast<unsigned char>(head[i]);
  if (length > kSafetensorsHeaderMax)
    return user_error(
        fmt::format("its header would have {} bytes, and the limit is {}: it is not a safetensors "
                    "file, or it is damaged",
                    length, kSafetensorsHeaderMax));
  if (length > file_size - kLengthSize)
    return user_error(
        fmt::format("its header has {} bytes, and {} follow: it was cut short; copy it again",
                    length, file_size - kLengthSize));
  if (length > head.size() - kLengthSize)
    return internal_error("only a part of a safetensors header was given");
  std::string_view text = head.substr(kLengthSize, static_cast<size_t>(length));
  if (!is_utf8(text)) return user_error("its header is not UTF-8: it is damaged");
  SafetensorsHeader header;
  FLOW_TRY(HeaderReader(text).read(header));
  uint64_t start = kLengthSize + length;
  FLOW_TRY(check_places(header, file_size - start));
  for (SafetensorsEntry& tensor : header.tensors) {
    tensor.begin += start;
    tensor.end += start;
  }
  return header;
}

Result<std::string> lay_out_safetensors(SafetensorsHeader& header) {
  auto& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    size_t x = rank_of(a.dtype), y = rank_of(b.dtype);
    return x != y ? x > y : a.name < b.name;
  });
  std::sort(header.metadata.begin(), header.metadata.end());
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += "\"__metadata__\":{";
    for (size_t i = 0; i < header.metadata.size(); i++) {
      const auto& [name, content] = header.metadata[i];
      FLOW_TRY(check_text(name, "the name of metadata"));
      FLOW_TRY(check_text(content, "the metadata"));
      if (i > 0 && header.metadata[i - 1].first == name)
        return user_error(fmt::format("the metadata has {} twice", shown(name)));
      if (i > 0) text += ',';
      append_json(text, name);
      text += ':';
      append_json(text, content);
    }
    text += '}';
  }
  uint64_t at = 0;
  std::unordered_set<std::string_view> names;
  for (SafetensorsEntry& tensor : tensors) {
    FLOW_TRY(check_text(tensor.name, "the name"));
    if (tensor.name == kMetadata)
      return user_error("a tensor can't be named `__metadata__`: the format keeps that name");
    if (!names.insert(tensor.name).second)
      return user_error(fmt::format("two tensors are named {}", shown(tensor.name)));
    uint64_t size = 0;
    if (!size_of(tensor, size) || size > static_cast<uint64_t>(kCountMax) - at)
      return user_error(fmt::format("{} is too large", shown(tensor.name)));
    tensor.begin = at;
    tensor.end = at += size;
    if (text.size() > 1) text += ',';
    append_json(text, tensor.name);
    std::string sizes;
    for (int64_t length : tensor.shape)
      sizes += (sizes.empty() ? "" : ",") + std::to_string(length);
    text += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        kTypes[rank_of(tensor.dtype)].name, sizes, tensor.begin, tensor.end);
    if (text.size() > kSafetensorsHeaderMax) break;
  }
  text += '}';
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  if (text.size() > kSafetensorsHeaderMax)
    return user_error(
        fmt::format("its header would have more than {} bytes: keep fewer tensors, "
                    "shorter names or less metadata in one file",
                    kSafetensorsHeaderMax));
  std::string out;
  for (size_t i = 0; i < kLengthSize; i++) out += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  for (SafetensorsEntry& tensor : tensors) {
    tensor.begin += kLengthSize + text.size();
    tensor.end += kLengthSize + text.size();
  }
  return out + text;
}

}  // namespace flow
