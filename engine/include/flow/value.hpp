// Task values: the arguments and results of tasks. They are immutable and compare by content.
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

/// A dense, row-major, little-endian tensor. Its data is a blob of its own; `digest` is the SHA-256
/// of the raw bytes.
struct Tensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;  // elements per dimension
  Digest digest;
  Bytes data;  // raw bytes; null if only the digest is known
};

/// A file (content, name, executable bit) or a folder of files. The content is a blob, or it is
/// read from `origin`.
struct File {
  struct Entry {       // one file of a folder; entries are sorted by path
    std::string path;  // relative, '/'-separated
    bool executable = false;
    uint64_t size = 0;  // bytes
    Digest digest;      // SHA-256 of the content
  };
  std::string name;  // last path component
  bool executable = false;
  bool is_folder = false;
  bool anonymous = false;  // of a parameter: the name is not part of the cache key
  uint64_t size = 0;       // bytes; of a folder the sum of its entries
  Digest digest;           // SHA-256 of the content; of a folder that of its canonical listing
  std::vector<Entry> entries;
  std::string origin;  // path of a large input that is read in place; not part of the cache key
};

/// One step from a handle to a part of its result.
struct PathStep;

/// A handle inside a plan's arguments: the result of `node`, or a part of it. Never part of a
/// task's result.
struct Ref {
  uint32_t node = 0;
  std::vector<PathStep> path;
  /// Of a map: its list has flow.null where an item is flow.missing, so that places are kept.
  bool keeps_places = false;
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
    ref,
    missing
  };

  /// Keys 1..n are in `list`, all others in `fields` in canonical order (integers ascending,
  /// strings bytewise, false, true). A table without fields keeps nils in its list; in a table with
  /// fields the entries after a nil are fields.
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
  /// flow.missing, the result of a task whose failure is ignored. A task may take it, but not
  /// return it.
  static Value missing();
  static Value list(std::vector<Value> items);
  static Value map(std::vector<std::pair<Value, Value>> fields);

  Kind kind() const { return static_cast<Kind>(state_.index()); }
  bool is_nil() const { return kind() == Kind::nil; }
  bool truthy() const;  // Lua's, and flow.null and flow.missing are not

  // Each accessor asserts the kind.
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

  /// The field or item under `key`; null if there is none or this is not a table.
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
  struct Missing {};
  std::variant<std::monostate, Null, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const Table>, std::shared_ptr<const Tensor>,
               std::shared_ptr<const File>, std::shared_ptr<const Ref>, Missing>
      state_;
};

struct PathStep {
  bool each = false;  // h:each(key): the field `key` of every item of a list
  Value key;
};

/// Canonical bytes: deterministic CBOR (RFC 8949, section 4.2.1). Equal values have equal bytes on
/// every machine. Tensors and files are encoded by digest, nil as `undefined`, flow.null as `null`,
/// flow.missing as a simple value, every NaN as the same bytes, refs with a tag.
std::string encode_value(const Value& value);
/// As encode_value, without anonymous files' names and without origins: the bytes for cache keys.
std::string encode_value_for_key(const Value& value);
/// Strict: rejects everything that encode_value would not write (key order, integer width, a depth
/// over 1000, trailing bytes).
Result<Value> decode_value(std::string_view bytes);

/// JSON as described in docs/reference-cli.md (`$map`, `$bytes`, `$tensor`, `$file`). With
/// `indent` < 0 on one line.
std::string to_json(const Value& value, int indent = -1);
/// Parses JSON: null becomes flow.null, arrays become lists, `$map` and `$bytes` are read back.
/// Rejects a depth over 200.
Result<Value> from_json(std::string_view text);

/// Appends the digests of all tensors and files in `value`, depth first.
void collect_blobs(const Value& value, std::vector<Digest>& out);
/// Follows `path`. The error names the missing part and the nearest existing field.
Result<Value> value_at(const Value& value, const std::vector<PathStep>& path);

/// The name of `names` with the smallest edit distance to `word`, for "did you mean"; "" if none is
/// close.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace flow
