// Conversion between values and JSON, as defined in docs/reference-cli.md. The only file that uses
// nlohmann::json, and of it only the parser.
#include "engine/value/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/crypto/base64.hpp"
#include "engine/value/cbor.hpp"
#include "engine/value/utf8.hpp"
#include "flow/value.hpp"

namespace flow {
namespace {

constexpr const char *kMap = "$map", *kBytes = "$bytes";

// Whether a table is a JSON object: all its keys are text. A single key with a `$` would be read as
// one of flow's own forms.
bool is_object(const Value::Table& table) {
  if (!table.list.empty()) return false;
  for (const auto& [key, value] : table.fields)
    if (key.kind() != Value::Kind::string || !is_utf8(key.as_string())) return false;
  return table.fields.size() != 1 || !table.fields[0].first.as_string().starts_with('$');
}

// ---- writing

class JsonWriter {
 public:
  JsonWriter(int indent, bool is_plain, const std::vector<std::string>* file_paths = nullptr)
      : indent_(indent), is_plain_(is_plain), file_paths_(file_paths) {}
  std::string take() { return std::move(out_); }

  void value(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::nil:
      case Value::Kind::null:
      case Value::Kind::missing:
        out_ += "null";
        break;
      case Value::Kind::boolean:
        out_ += value.as_boolean() ? "true" : "false";
        break;
      case Value::Kind::integer:
        out_ += fmt::format_int(value.as_integer()).c_str();
        break;
      case Value::Kind::number:
        number(value.as_number());
        break;
      case Value::Kind::string:
        string(value.as_string());
        break;
      case Value::Kind::table:
        table(value.as_table());
        break;
      case Value::Kind::tensor:
        tensor(value.as_tensor());
        break;
      case Value::Kind::file:
        file(value.as_file());
        break;
      case Value::Kind::ref:
        ref(value.as_ref());
        break;
    }
  }

 private:
  void number(double n) {
    if (std::isnan(n)) return quoted("NaN");
    if (std::isinf(n)) return quoted(n > 0 ? "Infinity" : "-Infinity");
    char buffer[40];
    auto end = std::to_chars(buffer, buffer + sizeof buffer, n).ptr;
    std::string_view text(buffer, static_cast<size_t>(end - buffer));
    out_ += text;
    if (text.find_first_of(".e") == text.npos)
      out_ += ".0";  // keeps it a float when it is read back
  }

  void quoted(std::string_view text) {
    out_ += '"';
    size_t plain = 0;
    for (size_t i = 0; i < text.size(); i++) {
      auto c = static_cast<unsigned char>(text[i]);
      if (c >= 0x20 && c != '"' && c != '\\') continue;
      out_ += text.substr(plain, i - plain);
      plain = i + 1;
      switch (c) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        default:
          out_ += fmt::format("\\u{:04x}", c);
      }
    }
    out_ += text.substr(plain);
    out_ += '"';
  }

  void string(const std::string& text) {
    if (is_utf8(text)) return quoted(text);
    open('{');
    item();
    name(kBytes);
    quoted(base64_encode(text));
    close('}');
  }

  // ---- layout

  void open(char bracket) {
    out_ += bracket;
    first_ = true;
    depth_++;
  }
  void item() {
    if (!first_) out_ += ',';
    first_ = false;
    new_line();
  }
  void close(char bracket) {
    depth_--;
    if (!first_) new_line();
    first_ = false;
    out_ += bracket;
  }
  void new_line() {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(indent_) * depth_, ' ');
  }
  void name(std::string_view key) {
    quoted(key);
    out_ += indent_ < 0 ? ":" : ": ";
  }

  // ---- tables

  // `{"$ref":…}` of another program, unless it would be read as one of flow's own two forms.
  bool is_plain_object(const Value::Table& table) const {
    if (!is_plain_ || !table.list.empty() || table.fields.size() != 1) return false;
    const Value& key = table.fields[0].first;
    return key.kind() == Value::Kind::string && is_utf8(key.as_string()) &&
           key.as_string() != kMap && key.as_string() != kBytes;
  }

  void table(const Value::Table& table) {
    if (table.fields.empty()) {
      open('[');
      for (const Value& entry : table.list) {
        item();
        value(entry);
      }
      return close(']');
    }
    open('{');
    if (is_object(table) || is_plain_object(table)) {
      for (const auto& [key, entry] : table.fields) {
        item();
        name(key.as_string());
        value(entry);
      }
    } else {
      item();
      name(kMap);
      open('[');
      for (size_t i = 0; i < table.list.size(); i++)
        pair(Value(static_cast<int64_t>(i) + 1), table.list[i]);
      for (const auto& [key, entry] : table.fields) pair(key, entry);
      close(']');
    }
    close('}');
  }

  void pair(const Value& key, const Value& entry) {
    item();
    open('[');
    item();
    value(key);
    item();
    value(entry);
    close(']');
  }

  // ---- tensors, files, handles

  void tensor(const Tensor& tensor) {
    open('{');
    item();
    name("$tensor");
    open('{');
    item();
    name("dtype");
    quoted(dtype_name(tensor.dtype));
    item();
    name("shape");
    open('[');
    for (int64_t dimension : tensor.shape) {
      item();
      out_ += fmt::format_int(dimension).c_str();
    }
    close(']');
    item();
    name("digest");
    quoted(tensor.digest.hex());
    close('}');
    close('}');
  }

  void file(const File& file) {
    open('{');
    item();
    name("$file");
    open('{');
    item();
    name("name");
    string(file.name);
    item();
    name("size");
    out_ += fmt::format_int(file.size).c_str();
    item();
    name("digest");
    quoted(file.digest.hex());
    if (file_paths_ != nullptr && files_ < file_paths_->size()) {
      item();
      name("path");
      string((*file_paths_)[files_++]);
    }
    close('}');
    close('}');
  }

  void ref(const Ref& ref) {
    open('{');
    item();
    name("$ref");
    open('{');
    item();
    name("node");
    out_ += fmt::format_int(ref.node).c_str();
    item();
    name("path");
    open('[');
    for (const PathStep& step : ref.path) {
      item();
      open('{');
      item();
      name(step.each ? "each" : "key");
      value(step.key);
      close('}');
    }
    close(']');
    close('}');
    close('}');
  }

  std::string out_;
  int indent_;
  bool is_plain_;
  const std::vector<std::string>* file_paths_;  // null: files have no paths
  size_t files_ = 0;                            // so far
  size_t depth_ = 0;
  bool first_ = true;
};

// ---- reading

using Json = nlohmann::json;

// An integer beyond 64 bits becomes a number if a double holds it exactly, or if its digits are the
// shortest that give that double (as JavaScript writes doubles). Otherwise it becomes the string of
// its digits.
Value long_integer(const std::string& digits, double number) {
  if (fmt::format("{:.0f}", number) == digits) return Value(number);
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific);
  std::string shortest(buffer, end.ptr);
  shortest.resize(shortest.find('e'));
  std::erase(shortest, '.');
  if (shortest.size() < digits.size()) shortest.resize(digits.size(), '0');
  return shortest == digits ? Value(number) : Value(digits);
}

// Builds values from the parser's callbacks. The parser itself does not recurse.
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  Value result;
  std::string fault;    // why parsing stopped, if that is not the parser's own reason
  size_t fault_at = 0;  // byte at which the parser stopped
  std::string syntax;   // the parser's reason

  bool null() override { return add(Value::null()); }
  bool boolean(bool b) override { return add(Value(b)); }
  bool number_integer(int64_t n) override { return add(Value(n)); }
  bool number_unsigned(uint64_t n) override {
    if (n <= INT64_MAX) return add(Value(static_cast<int64_t>(n)));
    return add(long_integer(std::to_string(n), static_cast<double>(n)));
  }
  bool number_float(double n, const std::string& text) override {
    bool is_integer = text.find_first_not_of("-0123456789") == std::string::npos;
    return add(is_integer && text != "-0" ? long_integer(text, n) : Value(n));
  }
  bool string(std::string& text) override { return add(Value(std::move(text))); }
  bool binary(Json::binary_t&) override { return false; }

  bool start_object(size_t) override { return start(true); }
  bool start_array(size_t) override { return start(false); }
  bool key(std::string& name) override {
    open_.back().keys.push_back(Value(std::move(name)));
    return true;
  }
  bool end_array() override {
    Value list = Value::list(std::move(open_.back().values));
    open_.pop_back();
    return add(std::move(list));
  }
  bool end_object() override {
    Open object = std::move(open_.back());
    open_.pop_back();
    // An object that looks like one of flow's forms but that flow would not have written comes from
    // another program: it is an ordinary object.
    if (object.keys.size() == 1) {
      Value own;
      if (object.keys[0].as_string() == kMap && read_map(object.values[0], own))
        return add(std::move(own));
      if (object.keys[0].as_string() == kBytes && read_bytes(object.values[0], own))
        return add(std::move(own));
    }
    std::vector<std::pair<Value, Value>> fields;
    fields.reserve(object.keys.size());
    for (size_t i = 0; i < object.keys.size(); i++)
      fields.emplace_back(std::move(object.keys[i]), std::move(object.values[i]));
    return add(Value::map(std::move(fields)));
  }
  bool parse_error(size_t position, const std::string&, const Json::exception& e) override {
    fault_at = position;
    syntax = e.what();
    return false;
  }

 private:
  struct Open {
    bool is_object;
    std::vector<Value> keys, values;
  };

  bool stop(std::string why) {
    fault = std::move(why);
    return false;
  }

  bool start(bool is_object) {
    if (open_.size() == kTableDepthMax)
      return stop(fmt::format("it is nested deeper than {}", kTableDepthMax));
    open_.push_back({is_object, {}, {}});
    return true;
  }

  bool add(Value value) {
    if (open_.empty()) {
      result = std::move(value);
    } else {
      open_.back().values.push_back(std::move(value));
    }
    return true;
  }

  static bool is_key(const Value& value) {
    return value.kind() == Value::Kind::string || value.kind() == Value::Kind::integer ||
           value.kind() == Value::Kind::boolean;
  }

  // `$map`: a list of [key, value] of a table that is neither a list nor an object.
  static bool read_map(const Value& pairs, Value& out) {
    if (pairs.kind() != Value::Kind::table || !pairs.as_table().fields.empty()) return false;
    std::vector<std::pair<Value, Value>> fields;
    for (const Value& pair : pairs.as_table().list) {
      bool is_pair = pair.kind() == Value::Kind::table && pair.as_table().fields.empty() &&
                     pair.as_table().list.size() == 2;
      if (!is_pair || !is_key(pair.as_table().list[0])) return false;
      fields.emplace_back(pair.as_table().list[0], pair.as_table().list[1]);
    }
    out = Value::map(std::move(fields));
    const Value::Table& table = out.as_table();
    return !table.fields.empty() && !is_object(table);
  }

  // `$bytes`: base64 of bytes that are not UTF-8 text.
  static bool read_bytes(const Value& text, Value& out) {
    std::string bytes;
    if (text.kind() != Value::Kind::string || !base64_decode(text.as_string(), bytes)) return false;
    if (is_utf8(bytes)) return false;
    out = Value(std::move(bytes));
    return true;
  }

  std::vector<Open> open_;
};

// Removes "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while …",
// because the position is added here.
std::string reason_of(const std::string& what) {
  size_t column = what.find("column ");
  size_t colon = what.find(": ", column == what.npos ? 0 : column);
  if (colon != what.npos) return what.substr(colon + 2);
  size_t bracket = what.find("] ");
  return bracket == what.npos ? what : what.substr(bracket + 2);
}

Error parse_failure(std::string_view text, const JsonBuilder& builder) {
  // The parser stopped after this byte. A newline there belongs to the faulty line.
  size_t last = std::min(std::max<size_t>(builder.fault_at, 1) - 1, text.size());
  std::string_view before = text.substr(0, last);
  auto lines = std::count(before.begin(), before.end(), '\n');
  size_t line_end = before.rfind('\n');
  size_t column = line_end == before.npos ? last : last - line_end - 1;
  return user_error(fmt::format("this is not JSON: line {}, column {}: {}", lines + 1, column + 1,
                                to_utf8(reason_of(builder.syntax))));
}

}  // namespace

std::string to_json(const Value& value, int indent) {
  JsonWriter writer(indent, false);
  writer.value(value);
  return writer.take();
}

std::string text_to_json(std::string_view text) {
  return to_json(Value(is_utf8(text) ? std::string(text) : to_utf8(text)));
}

std::string to_json(const Value& value, int indent, const std::vector<std::string>& file_paths) {
  JsonWriter writer(indent, false, &file_paths);
  writer.value(value);
  return writer.take();
}

std::string to_plain_json(const Value& value, int indent) {
  JsonWriter writer(indent, true);
  writer.value(value);
  return writer.take();
}

Result<Value> from_json(std::string_view text) {
  // The parser treats a NUL as the end of the text.
  if (size_t zero = text.find('\0'); zero != text.npos) {
    auto line =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(zero), '\n') + 1;
    size_t start = text.substr(0, zero).rfind('\n');
    return user_error(fmt::format("this is not JSON: line {}, column {}: a NUL byte", line,
                                  start == text.npos ? zero + 1 : zero - start));
  }
  JsonBuilder builder;
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return std::move(builder.result);
  if (!builder.fault.empty()) return user_error("this JSON cannot be read: " + builder.fault);
  return parse_failure(text, builder);
}

}  // namespace flow
