// A value that crosses an edge: what a task takes and returns, immutable once built, equal by
// content.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "flow/bytes.hpp"
#include "flow/digest.hpp"
#include "flow/dtype.hpp"
#include "flow/result.hpp"

namespace flow {

/// A dense row-major little-endian tensor. The content is its own blob, named by `digest` (SHA-256
/// of the raw bytes).
struct Tensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // elements per dimension
  Digest digest;
  Bytes data;  // raw; null where only the digest is at hand
};

/// A file's content, name and executable bit; a folder is its files. The content is a blob or lies
/// at `origin`.
struct File {
  struct Entry {       // one file of a folder, sorted by path
    std::string path;  // relative, '/'-separated
    bool executable = false;
    uint64_t size = 0;  // bytes
    Digest digest;      // SHA-256 of the content
  };
  std::string name;  // last path component
  bool executable = false;
  bool is_folder = false;
  bool anonymous = false;  // a parameter: the name is not part of the canonical encoding
  uint64_t size = 0;       // bytes, of all entries for a folder
  Digest digest;           // SHA-256 of the content; for a folder of its canonical listing
  std::vector<Entry> entries;
  std::string origin;  // where a large input is read in place; not part of the canonical encoding
};

/// One step from a handle to a part of its result.
struct PathStep;

/// A handle inside a plan's arguments: the result of `node`, or a part of it. Never part of a
/// task's result.
struct Ref {
  uint32_t node = 0;
  std::vector<PathStep> path;
};

class Value {
 public:
  enum class Kind : uint8_t {
    nil,
    null,
    boolean,
    integer,
    number,
    string,
    table,
    tensor,
    file,
    ref
  };

  /// 1..n in `list`, every other key in `fields` in canonical order (integers ascending, strings
  /// bytewise, false, true). A list alone keeps its nils; beside fields what follows a nil is a
  /// field.
  struct Table {
    std::vector<Value> list;
    std::vector<std::pair<Value, Value>> fields;
  };

  Value() = default;  // nil
  Value(bool v) : state_(v) {}
  Value(int v) : state_(int64_t{v}) {}
  Value(int64_t v) : state_(v) {}
  Value(uint32_t v) : state_(int64_t{v}) {}
  Value(double v) : state_(v) {}
  Value(const char* v) : state_(std::make_shared<const std::string>(v)) {}
  Value(std::string v) : state_(std::make_shared<const std::string>(std::move(v))) {}
  Value(std::string_view v) : state_(std::make_shared<const std::string>(v)) {}
  Value(Tensor v) : state_(std::make_shared<const Tensor>(std::move(v))) {}
  Value(File v) : state_(std::make_shared<const File>(std::move(v))) {}
  Value(Ref v);
  Value(Table v);       // sorts `fields`, moves 1..n into `list`, drops nil values
  static Value null();  // flow.null
  static Value list(std::vector<Value> items);
  static Value map(std::vector<std::pair<Value, Value>> fields);

  Kind kind() const { return static_cast<Kind>(state_.index()); }
  bool is_nil() const { return kind() == Kind::nil; }
  bool truthy() const;  // Lua's: nil and false are not; flow.null is not either

  // Each asserts the kind.
  bool as_boolean() const { return std::get<bool>(state_); }
  int64_t as_integer() const { return std::get<int64_t>(state_); }
  double as_number() const;  // also of an integer
  const std::string& as_string() const {
    return *std::get<std::shared_ptr<const std::string>>(state_);
  }
  const Table& as_table() const { return *std::get<std::shared_ptr<const Table>>(state_); }
  const Tensor& as_tensor() const { return *std::get<std::shared_ptr<const Tensor>>(state_); }
  const File& as_file() const { return *std::get<std::shared_ptr<const File>>(state_); }
  const Ref& as_ref() const { return *std::get<std::shared_ptr<const Ref>>(state_); }

  /// The field or item under `key`, or null where there is none or this is no table.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const Value* find(const std::string& key) const { return find(std::string_view(key)); }
  template <size_t n>
  const Value* find(const char (&key)[n]) const {
    return find(std::string_view(key));
  }

  bool operator==(const Value& other) const;  // by content; tensors and files by digest

 private:
  struct Null {};
  std::variant<std::monostate, Null, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const Table>, std::shared_ptr<const Tensor>,
               std::shared_ptr<const File>, std::shared_ptr<const Ref>>
      state_;
};

struct PathStep {
  bool each = false;  // h:each(key): that field of every item of a list
  Value key;
};

/// Canonical bytes: deterministic CBOR (RFC 8949, section 4.2.1). Equal values have equal bytes on
/// every machine. Tensors and files are by digest; a nil is `undefined`, flow.null is `null`, all
/// NaNs are one, refs have a tag.
std::string encode_value(const Value& value);
/// As encode_value, with anonymous files' names and every origin left out: what a key is made of.
std::string encode_value_for_key(const Value& value);
/// Strict: refuses what encode_value would not write (order, width, depth over 1000, trailing
/// bytes).
Result<Value> decode_value(std::string_view bytes);

/// JSON as docs/reference-cli.md gives it (`$map`, `$bytes`, `$tensor`, `$file`). `indent` < 0
/// prints one line.
std::string to_json(const Value& value, int indent = -1);
/// Plain JSON text to a value: null is flow.null, arrays are lists. Depth to 200. Reads `$map` and
/// `$bytes` back.
Result<Value> from_json(std::string_view text);

/// Every tensor and file digest in `value`, depth first: the blobs it needs.
void collect_blobs(const Value& value, std::vector<Digest>& out);
/// Follows `path`; Error names the missing part and the nearest field there is.
Result<Value> value_at(const Value& value, const std::vector<PathStep>& path);

/// The nearest of `names` to `word` by edit distance, or "" where none is near: for "did you mean".
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace flow
