// The canonical code of a task (docs/internals.md, Keys): its instructions with everything that
// they reach, by value. Objects are numbered in the order of a traversal from the task's function,
// so cycles and sharing are encoded, and addresses are not.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>

#include "lua/sandbox/sandbox.hpp"
#include "lua/tensor/kernel.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {

namespace {

constexpr size_t kPartsMax = 300;       // key components with a name; further ones are combined
constexpr size_t kTextMax = 200;        // bytes of a component's text
constexpr size_t kNameMax = 120;        // bytes of a component's name
constexpr size_t kBufferMax = 1 << 16;  // bytes hashed at once
constexpr size_t kShallowMax = 200;     // objects visited to sort one key
constexpr int kStackNeeded = 20;

// The record kinds of the canonical form. A change of any of them changes every key.
enum RecordKind : char {
  kMarkNil = 'n',
  kMarkFalse = 'f',
  kMarkTrue = 't',
  kMarkInteger = 'i',
  kMarkFloat = 'd',
  kMarkString = 's',
  kMarkNull = '0',
  kMarkMissing = '1',
  kMarkObject = 'o',
  kMarkLibrary = 'L',
  kMarkTask = 'K',
  kMarkPipeline = 'P',
  kMarkFile = 'F',
  kMarkEnvironment = 'E',
  kMarkOpaque = 'X',
  kMarkFunction = 'c',
  kMarkTable = 'T',
  kMarkTensor = 'B',
  kMarkKernel = 'U',
  kMarkGlobals = 'G',
  kMarkModules = 'Q',
  kMarkCell = 'u',
  kMarkMetatable = 'm',
  kMarkHidden = 'h',
  kMarkExtensions = 'A'
};

std::string quoted_name(const std::string& name, const std::string& file) {
  std::string shown = name.size() <= kNameMax ? name : name.substr(0, kNameMax) + "…";
  return fmt::format("`{}` in {}", shown, file);
}

// Names beyond the shown length need not be built: tables may be deep.
std::string extended_name(const std::string& name, std::string_view more) {
  return name.size() > kNameMax ? name : name + std::string(more);
}

// While the graph is built the engine has not read the file yet.
Digest digest_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 hash;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof buffer) || file.gcount() > 0)
    hash.update({buffer, static_cast<size_t>(file.gcount())});
  return hash.finish();
}

bool is_plain_name(std::string_view text) {
  return !text.empty() && text.size() < kNameMax &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 127; });
}

class CodeHasher {
 public:
  /// `opaque_functions`: encodes a table's own content, with functions by presence only.
  /// `is_shallow`: encodes just enough to sort keys.
  explicit CodeHasher(lua_State* L, bool opaque_functions = false, bool is_shallow = false)
      : L_(L), opaque_functions_(opaque_functions), is_shallow_(is_shallow) {
    luaL_checkstack(L, kStackNeeded, "canonical code");
    lua_newtable(L);
    objects_ = lua_gettop(L);
  }
  ~CodeHasher() { lua_settop(L_, objects_ - 1); }
  CodeHasher(const CodeHasher&) = delete;
  CodeHasher& operator=(const CodeHasher&) = delete;

  std::vector<CodeComponent> parts;
  std::string gpu_kernel;  // the first kernel that needs a GPU

  /// Everything that the value at `index` reaches.
  Digest value(int index, const std::string& name, const std::string& file) {
    lua_pushvalue(L_, index);
    encode(name, file);
    lua_pop(L_, 1);
    return finish();
  }

  Digest task_code(int index) {
    put_size(kKeySchema);
    library_extensions();
    return value(index, "", "");
  }

 private:
  struct Object {
    std::string name, file;
    RecordKind kind;
    bool is_far;  // reached through `require`, which reaches every module
  };

  // ---- bytes

  void put(char c) { buffer_.push_back(c); }
  void put_size(uint64_t value) { put_raw(&value, sizeof value); }
  void put_raw(const void* bytes, size_t size) {
    buffer_.append(static_cast<const char*>(bytes), size);
    if (buffer_.size() < kBufferMax) return;
    hash_.update(buffer_);
    buffer_.clear();
  }
  void put_text(std::string_view text) {
    put_size(text.size());
    put_raw(text.data(), text.size());
  }
  void put_digest(const Digest& digest) { put_raw(digest.bytes.data(), digest.bytes.size()); }

  Digest finish() {
    while (done_ < queue_.size() && !(is_shallow_ && done_ >= kShallowMax)) {
      Object object = std::move(queue_[done_++]);
      lua_rawgeti(L_, objects_, static_cast<lua_Integer>(done_));
      record(object);
      lua_settop(L_, objects_);
    }
    hash_.update(buffer_);
    buffer_.clear();
    return hash_.finish();
  }

  // ---- values

  // The value at the top, which stays.
  void encode(const std::string& name, const std::string& file) {
    int top = lua_gettop(L_);
    switch (lua_type(L_, top)) {
      case LUA_TNIL:
        return put(kMarkNil);
      case LUA_TBOOLEAN:
        return put(lua_toboolean(L_, top) ? kMarkTrue : kMarkFalse);
      case LUA_TNUMBER:
        return number(top);
      case LUA_TSTRING: {
        size_t size;
        const char* text = lua_tolstring(L_, top, &size);
        put(kMarkString);
        return put_text({text, size});
      }
      case LUA_TLIGHTUSERDATA:
        if (lua_touserdata(L_, top) == &kNullKey) return put(kMarkNull);
        if (lua_touserdata(L_, top) == &kMissingKey) return put(kMarkMissing);
        return opaque("a light userdata", file);
      case LUA_TTHREAD:
        return opaque("a coroutine", file);
      default:
        return object(top, name, file);
    }
  }

  void number(int index) {
    if (lua_isinteger(L_, index)) {
      put(kMarkInteger);
      return put_size(static_cast<uint64_t>(lua_tointeger(L_, index)));
    }
    double value = lua_tonumber(L_, index);
    if (std::isnan(value)) value = std::bit_cast<double>(uint64_t{0x7ff8000000000000});
    put(kMarkFloat);
    put_size(std::bit_cast<uint64_t>(value));
  }

  void object(int index, const std::string& name, const std::string& file) {
    if (is_globals(L_, index)) {
      put(kMarkEnvironment);
      return all_globals();
    }
    std::string library = library_name(L_, index);
    if (!library.empty()) {
      put(kMarkLibrary);
      put_text(library);
      if (reaches_all_globals(library)) all_globals();
      if (reaches_modules(library)) all_modules();
      return;
    }
    if (lua_type(L_, index) == LUA_TTABLE) return refer(index, name, file, kMarkTable);
    if (lua_type(L_, index) == LUA_TFUNCTION) {
      if (opaque_functions_) return put(kMarkHidden);
      if (lua_tocfunction(L_, index) == nullptr) return refer(index, name, file, kMarkFunction);
      return opaque("a function of a library's making", file);
    }
    if (const TaskObject* task = test_task(L_, index)) return by_name(kMarkTask, task->def.name);
    if (const PipelineObject* pipeline = test_pipeline(L_, index))
      return by_name(kMarkPipeline, pipeline->name);
    if (const File* found = test_file(L_, index)) {
      put(kMarkFile);
      put_text(encode_value(Value(*found)));
      return put_digest(found->digest.is_zero() ? digest_of_file(found->origin) : found->digest);
    }
    if (is_tensor(L_, index)) return refer(index, name, file, kMarkTensor);
    if (test_kernel(L_, index) != nullptr) return refer(index, name, file, kMarkKernel);
    opaque(kind_text(L_, index), file);
  }

  void by_name(RecordKind mark, const std::string& name) {
    put(mark);
    put_text(name);
  }

  void refer(int index, const std::string& name, const std::string& file, RecordKind kind) {
    auto [found, is_new] = numbers_.emplace(lua_topointer(L_, index), queue_.size());
    put(kMarkObject);
    put_size(found->second);
    if (!is_new) return;
    queue_.push_back({name, file, kind, is_far_ || kind == kMarkModules});
    lua_pushvalue(L_, index);
    lua_rawseti(L_, objects_, static_cast<lua_Integer>(queue_.size()));
  }

  // A value without a canonical form is replaced by the texts of all files: an iterator or a
  // coroutine may hold an object of any module.
  void opaque(const std::string& what, const std::string& file) {
    put(kMarkOpaque);
    put_text(what);
    std::vector<Digest> texts;
    for (const auto& [path, source] : *sandbox(L_).files) {
      texts.push_back(sha256(source));
      if (!has_file_texts_)
        add_part(
            fmt::format("the text of {}, which is part of the key because its code has {} in {},",
                        path, what, file),
            texts.back(), "");
    }
    has_file_texts_ = true;
    std::sort(texts.begin(), texts.end());
    for (const Digest& text : texts) put_digest(text);
  }

  void all_globals() { pseudo(kGlobalsKey, kMarkGlobals); }
  void all_modules() { pseudo(kLoadedKey, kMarkModules); }
  void pseudo(const char& key, RecordKind kind) {
    if (opaque_functions_) return;
    lua_rawgetp(L_, LUA_REGISTRYINDEX, &key);
    refer(lua_gettop(L_), "", "", kind);
    lua_pop(L_, 1);
  }

  // ---- objects

  void record(const Object& object) {
    int index = lua_gettop(L_);
    put(object.kind);
    is_far_ = object.is_far;
    switch (object.kind) {
      case kMarkTable:
        return table(index, object);
      case kMarkFunction:
        return function(index, object);
      case kMarkTensor: {
        Tensor tensor = read_tensor(L_, index, TensorRead::shared);
        const tensors::Tensor& x = *test_object(L_, index);
        put_text(std::string(dtype_name(tensor.dtype)) + (x.wants_gradient() ? " gradient" : ""));
        share(x);
        put_size(tensor.shape.size());
        for (int64_t size : tensor.shape) put_size(static_cast<uint64_t>(size));
        return put_digest(tensor.digest);
      }
      case kMarkKernel:
        return kernel(index, object);
      case kMarkGlobals:
        for (const std::string& name : script_globals(L_)) global(name, true);
        return;
      default:
        return modules(index);
    }
  }

  // The script's arguments, without the location of the source.
  void kernel(int index, const Object& object) {
    if (gpu_kernel.empty() && !object.is_far && !kernel_has(L_, index, "fallback"))
      gpu_kernel = test_kernel(L_, index)->source().name;
    push_kernel_table(L_, index);
    table(lua_gettop(L_), object);
  }

  // Tensors on the same memory: a write to one is visible in the other.
  void share(const tensors::Tensor& x) {
    auto offset = static_cast<uint64_t>(x.view().data - x.storage()->data());
    auto [first, is_first] =
        memories_.emplace(x.storage().get(), std::pair(memories_.size(), offset));
    if (is_first) return;
    put_text("shares");
    put_size(first->second.first);
    put_size(first->second.second);
    put_size(offset);
    for (int dim = 0; dim < x.rank(); dim++) put_size(static_cast<uint64_t>(x.view().strides[dim]));
  }

  void table(int index, const Object& object) {
    size_t count = push_ordered_keys(L_, index);
    int keys = lua_gettop(L_);
    put_size(count);
    std::vector<std::pair<Digest, lua_Integer>> objects;
    for (size_t i = 1; i <= count; i++) {
      auto at = static_cast<lua_Integer>(i);
      lua_rawgeti(L_, keys, at);
      if (has_order(-1)) {
        entry(index, object);
      } else if (!is_shallow_) {
        objects.emplace_back(shallow_digest(index, object.file), at);
      }
      lua_settop(L_, keys);
    }
    std::sort(objects.begin(), objects.end());
    for (const auto& [digest, at] : objects) {
      lua_rawgeti(L_, keys, at);
      entry(index, object);
      lua_settop(L_, keys);
    }
    if (!lua_getmetatable(L_, index)) return;
    put(kMarkMetatable);
    encode(extended_name(object.name, "'s metatable"), object.file);
  }

  bool has_order(int index) {
    int type = lua_type(L_, index);
    return type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TBOOLEAN;
  }

  // The key at the top and its value in the table at `index`.
  void entry(int index, const Object& object) {
    encode("", object.file);
    std::string name;
    if (lua_type(L_, -1) == LUA_TSTRING) {
      size_t size;
      const char* text = lua_tolstring(L_, -1, &size);
      if (is_plain_name({text, size}))
        name = object.name.empty() ? text : extended_name(object.name, std::string(".") + text);
    }
    if (name.empty()) name = extended_name(object.name, "[…]");
    lua_pushvalue(L_, -1);
    lua_rawget(L_, index);
    encode(name, object.file);
  }

  // Object keys are sorted by their content and their values.
  Digest shallow_digest(int index, const std::string& file) {
    lua_newtable(L_);
    lua_pushvalue(L_, -2);
    lua_rawseti(L_, -2, 1);
    lua_pushvalue(L_, -2);
    lua_rawget(L_, index);
    lua_rawseti(L_, -2, 2);
    int pair = lua_gettop(L_);
    Digest digest = CodeHasher(L_, true, true).value(pair, "", file);
    lua_pop(L_, 1);
    return digest;
  }

  void function(int index, const Object& object) {
    const FunctionCode& code = function_code(L_, index);
    put_digest(code.digest);
    add_part(object.name.empty() ? "its function" : quoted_name(object.name, code.file),
             code.digest, "", code.source);
    for (int i = 1;; i++) {
      const char* name = lua_getupvalue(L_, index, i);
      if (name == nullptr) break;
      if (is_globals(L_, -1)) {
        put(kMarkEnvironment);  // the globals that the code reads are encoded below
      } else {
        cell(index, i, name, code.file);
      }
      lua_settop(L_, index);
    }
    if (code.all_globals) all_globals();
    if (code.modules) all_modules();
    for (const std::string& name : code.globals) global(name, false);
  }

  // A captured variable, whose value is at the top.
  void cell(int function, int upvalue, const std::string& name, const std::string& file) {
    auto [found, is_new] = cells_.emplace(lua_upvalueid(L_, function, upvalue), cells_.size());
    put(kMarkCell);
    put_size(found->second);
    if (!is_new) return;
    encode(name, file);
    part_of_value(quoted_name(name, file), name, file);
  }

  void global(const std::string& name, bool of_script_only) {
    if (!of_script_only && sandbox(L_).declared.count(name) == 0)
      return;  // library globals are encoded by name
    lua_rawgetp(L_, LUA_REGISTRYINDEX, &kGlobalsKey);
    lua_pushlstring(L_, name.data(), name.size());
    lua_rawget(L_, -2);
    put_text(name);
    encode(name, "the globals");
    part_of_value(fmt::format("the global `{}`", name), name, "the globals");
    lua_pop(L_, 2);
  }

  void modules(int index) {
    push_ordered_keys(L_, index);
    int keys = lua_gettop(L_);
    for (lua_Integer i = 1; lua_rawgeti(L_, keys, i) != LUA_TNIL; i++) {
      std::string name = lua_type(L_, -1) == LUA_TSTRING ? lua_tostring(L_, -1) : "";
      lua_rawget(L_, index);
      if (library_name(L_, -1).empty()) {
        put_text(name);
        encode(name, name);
        part_of_value(fmt::format("the module `{}`", name), name, name);
      }
      lua_settop(L_, keys);
    }
  }

  void library_extensions() {
    const auto& added = sandbox(L_).library_extensions;
    if (added.empty()) return;
    put(kMarkExtensions);
    lua_rawgetp(L_, LUA_REGISTRYINDEX, &kExtensionsKey);
    int tables = lua_gettop(L_);
    for (const auto& [library, field] : added) {
      lua_getfield(L_, tables, library.c_str());
      lua_pushlstring(L_, field.data(), field.size());
      lua_rawget(L_, -2);
      std::string name = library + "." + field;
      put_text(name);
      encode(name, "the libraries");
      part_of_value(fmt::format("`{}`, added to the libraries,", name), name, "the libraries");
      lua_settop(L_, tables);
    }
    lua_settop(L_, tables - 1);
  }

  // ---- parts

  void add_part(const std::string& name, const Digest& digest, std::string text,
                const std::string& source = "") {
    if (opaque_functions_) return;
    uint32_t count = ++part_names_[name];
    if (parts.size() >= kPartsMax) {
      CodeComponent& rest = parts.back();
      rest.name = "what else its code reaches";
      rest.text.clear();
      rest.source.clear();
      rest.digest = sha256(std::string(rest.digest.view()) + name + std::string(digest.view()));
      return;
    }
    if (text.size() > kTextMax) text.clear();
    std::string shown = count == 1 ? name : fmt::format("{} ({})", name, count);
    parts.push_back({std::move(shown), digest, std::move(text), source});
  }

  // The value at the top. Functions, tasks and libraries are key components of their own or of the
  // code.
  void part_of_value(const std::string& part, const std::string& name, const std::string& file) {
    if (opaque_functions_) return;
    int top = lua_gettop(L_);
    switch (lua_type(L_, top)) {
      case LUA_TFUNCTION: {
        std::string library = library_name(L_, top);
        if (!library.empty()) add_part(part, sha256(library), library);
        return;
      }
      case LUA_TTABLE:
      case LUA_TUSERDATA: {
        std::string shown = task_name(top);
        if (!library_name(L_, top).empty()) shown = library_name(L_, top);
        add_part(part, CodeHasher(L_, true).value(top, name, file), shown);
        return;
      }
      default: {
        lua_pushvalue(L_, top);
        luaL_tolstring(L_, -1, nullptr);
        size_t size;
        const char* text = lua_tolstring(L_, -1, &size);
        add_part(part, CodeHasher(L_, true).value(top, name, file), std::string(text, size));
        lua_settop(L_, top);
      }
    }
  }

  std::string task_name(int index) {
    if (const TaskObject* task = test_task(L_, index)) return task->def.name;
    if (const PipelineObject* pipeline = test_pipeline(L_, index)) return pipeline->name;
    return "";
  }

  lua_State* L_;
  bool opaque_functions_, is_shallow_;
  bool is_far_ = false;          // current objects are reached through `require`
  bool has_file_texts_ = false;  // the texts of the files are encoded
  int objects_;  // stack index of the list of objects, in the order of their numbers
  std::vector<Object> queue_;
  // The memory of tensors so far: its number, and the offset of the first tensor in it.
  std::unordered_map<const void*, std::pair<size_t, uint64_t>> memories_;
  size_t done_ = 0;
  std::unordered_map<const void*, uint64_t> numbers_, cells_;
  std::unordered_map<std::string, uint32_t> part_names_;
  std::string buffer_;
  Sha256 hash_;
};

}  // namespace

CanonicalCode canonical_code(lua_State* L, int index) {
  index = lua_absindex(L, index);
  CodeHasher hasher(L);
  CanonicalCode code;
  code.digest = hasher.task_code(index);
  code.parts = std::move(hasher.parts);
  code.gpu_kernel = std::move(hasher.gpu_kernel);
  return code;
}

}  // namespace flow::lua
