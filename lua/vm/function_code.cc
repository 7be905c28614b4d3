// The instructions of a Lua function, without properties that an edit elsewhere in its file
// changes: lines, names, and the registers of the outermost function's upvalues.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

namespace {

// Lua 5.4's instruction layout and the operations that access upvalues (lopcodes.h).
constexpr uint32_t kGetUpvalue = 9, kSetUpvalue = 10, kGetTableUpvalue = 11;
constexpr uint32_t opcode(uint32_t i) { return i & 0x7f; }
constexpr uint32_t operand_b(uint32_t i) { return i >> 16 & 0xff; }
constexpr uint32_t operand_c(uint32_t i) { return i >> 24; }

constexpr size_t kHeaderSize = 31;  // of lua_dump: signature, version, sizes, two sample numbers
constexpr uint8_t kVersion = 0x54;
// Tags of constants (lobject.h).
constexpr uint8_t kNil = 0x00, kFalse = 0x01, kTrue = 0x11, kInteger = 0x03, kFloat = 0x13,
                  kShortString = 0x04, kLongString = 0x14;

int append(lua_State*, const void* data, size_t size, void* out) {
  static_cast<std::string*>(out)->append(static_cast<const char*>(data), size);
  return 0;
}

// Reads lua_dump's bytes and writes the canonical ones.
class Dump {
 public:
  Dump(std::string_view bytes, FunctionCode& code) : at_(bytes.data()), code_(code) {
    end_ = at_ + bytes.size();
    FLOW_CHECK(bytes.size() > kHeaderSize && static_cast<uint8_t>(bytes[4]) == kVersion);
    at_ += kHeaderSize + 1;  // and the count of upvalues
  }

  std::string canonical;

  /// `globals`: the upvalues that are the globals, of the function itself if it is the outermost,
  /// otherwise of the enclosing function.
  void function(const std::vector<bool>& globals, bool outermost) {
    string();  // source
    size();    // lines
    size();
    copy(3);  // parameters, vararg, stack
    uint64_t count = size();
    put(count);
    const char* instructions = at_;
    copy(count * sizeof(uint32_t));
    std::vector<std::string_view> names = constants();
    std::vector<bool> own = upvalues(globals, outermost);
    note_globals(instructions, count, names, own);
    uint64_t inner = size();
    put(inner);
    for (uint64_t i = 0; i < inner; i++) function(own, false);
    skip_debug();
  }

 private:
  uint8_t byte() {
    FLOW_CHECK(at_ < end_);
    return static_cast<uint8_t>(*at_++);
  }
  uint64_t size() {
    uint64_t value = 0;
    for (;;) {
      uint8_t b = byte();
      value = value << 7 | (b & 0x7f);
      if (b & 0x80) return value;
    }
  }
  std::string_view take(uint64_t count) {
    FLOW_CHECK(count <= static_cast<uint64_t>(end_ - at_));
    std::string_view bytes(at_, count);
    at_ += count;
    return bytes;
  }
  std::string_view string() {
    uint64_t length = size();
    return length == 0 ? std::string_view() : take(length - 1);
  }
  void copy(uint64_t count) { canonical.append(take(count)); }
  void put(uint64_t value) {
    canonical.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  // The strings among them by position; "" for others.
  std::vector<std::string_view> constants() {
    uint64_t count = size();
    put(count);
    std::vector<std::string_view> names(count);
    for (uint64_t i = 0; i < count; i++) {
      uint8_t tag = byte();
      canonical.push_back(static_cast<char>(tag));
      switch (tag) {
        case kNil:
        case kFalse:
        case kTrue:
          break;
        case kInteger:
        case kFloat:
          copy(sizeof(uint64_t));
          break;
        default:
          FLOW_CHECK(tag == kShortString || tag == kLongString);
          names[i] = string();
          put(names[i].size());
          canonical.append(names[i]);
      }
    }
    return names;
  }

  std::vector<bool> upvalues(const std::vector<bool>& globals, bool outermost) {
    uint64_t count = size();
    put(count);
    std::vector<bool> own(count);
    for (uint64_t i = 0; i < count; i++) {
      uint8_t in_stack = byte(), index = byte();
      byte();  // <const> or not
      if (outermost) {
        own[i] = i < globals.size() && globals[i];
        continue;
      }
      canonical.push_back(static_cast<char>(in_stack));
      canonical.push_back(static_cast<char>(index));
      own[i] = in_stack == 0 && index < globals.size() && globals[index];
    }
    return own;
  }

  void note_globals(const char* instructions, uint64_t count,
                    const std::vector<std::string_view>& names, const std::vector<bool>& globals) {
    for (uint64_t i = 0; i < count; i++) {
      uint32_t instruction;
      std::memcpy(&instruction, instructions + i * sizeof instruction, sizeof instruction);
      uint32_t upvalue = operand_b(instruction);
      if (upvalue >= globals.size() || !globals[upvalue]) continue;
      switch (opcode(instruction)) {
        case kGetTableUpvalue:
          note_name(names[operand_c(instruction)]);
          break;
        case kGetUpvalue:
        case kSetUpvalue:
          code_.all_globals = true;
          break;
        default:
          break;
      }
    }
  }

  void note_name(std::string_view name) {
    code_.globals.emplace_back(name);
    code_.all_globals = code_.all_globals || reaches_all_globals(name);
    code_.modules = code_.modules || reaches_modules(name);
  }

  void skip_debug() {
    take(size());  // line of each instruction, as a difference
    for (uint64_t n = size(); n > 0; n--) {
      size();
      size();
    }
    for (uint64_t n = size(); n > 0; n--) {  // locals
      string();
      size();
      size();
    }
    for (uint64_t n = size(); n > 0; n--) string();  // upvalues' names
  }

  const char* at_;
  const char* end_;
  FunctionCode& code_;
};

void note_source(lua_State* L, int index, FunctionCode& code) {
  lua_Debug about;
  lua_pushvalue(L, index);
  lua_getinfo(L, ">S", &about);
  bool is_of_file = about.source[0] == '@';
  code.file = is_of_file ? about.source + 1 : about.short_src;
  if (is_of_file && about.linedefined > 0)
    code.source = fmt::format("{}:{}-{}", code.file, about.linedefined, about.lastlinedefined);
}

FunctionCode read_code(lua_State* L, int index) {
  FunctionCode code;
  note_source(L, index, code);
  std::vector<bool> globals;
  for (int i = 1; lua_getupvalue(L, index, i) != nullptr; i++) {
    globals.push_back(is_globals(L, -1));
    lua_pop(L, 1);
  }
  std::string bytes;
  lua_pushvalue(L, index);
  int status = lua_dump(L, append, &bytes, 0);
  lua_pop(L, 1);
  FLOW_CHECK(status == 0);
  Dump dump(bytes, code);
  dump.function(globals, true);
  code.digest = sha256(dump.canonical);
  std::sort(code.globals.begin(), code.globals.end());
  code.globals.erase(std::unique(code.globals.begin(), code.globals.end()), code.globals.end());
  return code;
}

}  // namespace

bool is_globals(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TTABLE || !push_proxied_table(L, index)) return false;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kGlobalsKey);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same;
}

bool reaches_all_globals(std::string_view name) {
  return name == "_G" || name == "load" || name == "loadfile" || name == "dofile";
}

bool reaches_modules(std::string_view name) {
  return name == "require" || name == "package" || name == "package.loaded";
}

std::vector<std::string> script_globals(lua_State* L) {
  const auto& declared = sandbox(L).declared;
  std::vector<std::string> names(declared.begin(), declared.end());
  std::sort(names.begin(), names.end());
  return names;
}

const FunctionCode& function_code(lua_State* L, int index) {
  auto& codes = sandbox(L).function_codes;
  const void* self = lua_topointer(L, index);
  auto found = codes.find(self);
  if (found == codes.end()) found = codes.emplace(self, read_code(L, lua_absindex(L, index))).first;
  return found->second;
}

void forget_function_codes(lua_State* L) { sandbox(L).function_codes.clear(); }

}  // namespace flow::lua
