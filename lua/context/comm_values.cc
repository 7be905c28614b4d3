// Plain values between ranks: numbers, strings, tables, and tensors in them; each rank gets its own
// copy. A message begins with a header of fixed size, which contains a short value completely.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/value/cbor.hpp"
#include "lua/context/comm.hpp"

namespace flow::lua {
namespace {

constexpr size_t kHeadBytes = 512;
constexpr size_t kInlineBytes = kHeadBytes - sizeof(uint64_t);
constexpr uint64_t kValueMax = uint64_t{4} << 30;

// ---- a value as bytes: their length before its tensors, its canonical form, its tensors' bytes

void each_tensor(Value& value, const std::function<void(flow::Tensor&)>& visit) {
  if (value.kind() == Value::Kind::tensor) {
    flow::Tensor tensor = value.as_tensor();
    visit(tensor);
    value = Value(std::move(tensor));
  }
  if (value.kind() != Value::Kind::table) return;
  Value::Table table = value.as_table();
  for (Value& item : table.list) each_tensor(item, visit);
  for (auto& [key, item] : table.fields) each_tensor(item, visit);
  value = Value(std::move(table));
}

// An input is available on every rank; a file of ctx:file only on the rank that made it.
void check_files(lua_State* L, const Value& value, const char* method) {
  if (value.kind() == Value::Kind::table) {
    for (const Value& item : value.as_table().list) check_files(L, item, method);
    for (const auto& [key, item] : value.as_table().fields) check_files(L, item, method);
  }
  if (value.kind() != Value::Kind::file) return;
  const File& file = value.as_file();
  const auto& inputs = context(L).input_files;
  bool is_input = std::any_of(inputs.begin(), inputs.end(),
                              [&](const auto& each) { return each.second.digest == file.digest; });
  if (!is_input)
    raise(L, fmt::format("ctx.comm:{}: the file `{}` was made on this rank and exists on no other: "
                         "send its content, a string or a tensor, or let rank 0 return the file",
                         method, file.name));
}

std::string packed(lua_State* L, int index, const char* method) {
  auto value = read_snapshot(L, index, fmt::format("the value given to ctx.comm:{}", method));
  if (!value.ok()) raise(L, value.error().message);
  check_files(L, *value, method);
  std::string tensors, text;
  each_tensor(*value, [&](flow::Tensor& tensor) { tensors += *tensor.data; });
  append_value(*value, text);
  uint64_t size = text.size();
  std::string out(reinterpret_cast<const char*>(&size), sizeof size);
  return out + text + tensors;
}

Result<Value> unpacked(std::string bytes) {
  auto kept = std::make_shared<const std::string>(std::move(bytes));
  std::string_view rest = *kept;
  uint64_t size = 0;
  Error decode_error = environment_error("another rank sent bytes that do not decode as a value");
  if (rest.size() < sizeof size) return decode_error;
  std::memcpy(&size, rest.data(), sizeof size);
  rest.remove_prefix(sizeof size);
  if (size > rest.size()) return decode_error;
  std::string_view text = rest.substr(0, size);
  rest.remove_prefix(size);
  auto value = take_value(text);
  if (!value.ok()) return value;
  bool fits = text.empty();
  each_tensor(*value, [&](flow::Tensor& tensor) {
    size_t length = dtype_size(tensor.dtype);
    for (int64_t dim : tensor.shape) length *= static_cast<size_t>(std::max<int64_t>(dim, 0));
    fits = fits && length <= rest.size();
    tensor.data = Bytes(rest.substr(0, fits ? length : 0), kept);
    rest.remove_prefix(tensor.data->size());
  });
  if (!fits || !rest.empty()) return decode_error;
  return value;
}

void push_unpacked(lua_State* L, const char* method, std::string bytes) {
  auto value = unpacked(std::move(bytes));
  if (!value.ok()) raise(L, fmt::format("ctx.comm:{}: {}", method, value.error().message));
  push_value(L, *value);
}

// ---- heads

std::string head_of(const std::string& bytes) {
  std::string head(kHeadBytes, '\0');
  uint64_t size = bytes.size();
  std::memcpy(head.data(), &size, sizeof size);
  if (size <= kInlineBytes && size > 0) std::memcpy(head.data() + sizeof size, bytes.data(), size);
  return head;
}

// The length of the value, in the header or after it.
uint64_t check_head(lua_State* L, const char* method, const char* head) {
  uint64_t size = 0;
  std::memcpy(&size, head, sizeof size);
  if (size > kValueMax)
    raise(L, fmt::format("ctx.comm:{}: a plain value has {} bytes; the limit is {}: send large "
                         "tensors as tensors",
                         method, size, kValueMax));
  return size;
}

int64_t length_of(const std::string& bytes) { return static_cast<int64_t>(bytes.size()); }

void run_value(lua_State* L, Comm& comm, const char* method, CollectiveCall call) {
  call.subject = Subject::value;
  check_done(L, comm, method, comm.run(call));
}

template <typename Make>
void run_bytes(lua_State* L, Comm& comm, const char* method, std::string& bytes, Make make) {
  run_value(L, comm, method, make(bytes.data(), length_of(bytes)));
}

// A header, then the value if it is too long for one, transferred by `make`.
template <typename Make>
void move_value(lua_State* L, Comm& comm, const char* method, std::string& bytes, Make make) {
  std::string head = head_of(bytes);
  run_bytes(L, comm, method, head, make);
  uint64_t size = check_head(L, method, head.data());
  bytes.resize(size);
  if (size > kInlineBytes) return run_bytes(L, comm, method, bytes, make);
  bytes = head.substr(sizeof size, size);
}

// ---- numbers

struct RankNumber {
  uint64_t is_integer = 0;
  int64_t integer = 0;
  double number = 0;
};

// NaN propagates through max and min, as it does in tensors.
double combined(ReduceOp op, double a, double b) {
  if (op == ReduceOp::sum || op == ReduceOp::mean) return a + b;
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return op == ReduceOp::max ? std::max(a, b) : std::min(a, b);
}

int64_t combined(ReduceOp op, int64_t a, int64_t b) {
  if (op == ReduceOp::max) return std::max(a, b);
  if (op == ReduceOp::min) return std::min(a, b);
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

}  // namespace

// In the order of ranks: the same bits everywhere. The result is an integer if all operands are.
void reduce_number(lua_State* L, Comm& comm, int index, ReduceOp op) {
  RankNumber own;
  own.is_integer = lua_isinteger(L, index) ? 1 : 0;
  own.integer = own.is_integer ? lua_tointeger(L, index) : 0;
  own.number = lua_tonumber(L, index);
  std::vector<RankNumber> all(static_cast<size_t>(comm.ranks()));
  CollectiveCall call = all_gather(&own, all.data(), sizeof own, DType::u8);
  call.subject = Subject::number;
  call.op = op;
  check_done(L, comm, "all_reduce", comm.run(call));
  RankNumber sum = all[0];
  for (size_t i = 1; i < all.size(); i++) {
    sum.is_integer &= all[i].is_integer;
    sum.integer = combined(op, sum.integer, all[i].integer);
    sum.number = combined(op, sum.number, all[i].number);
  }
  if (op == ReduceOp::mean) {
    lua_pushnumber(L, sum.number / comm.ranks());
  } else if (sum.is_integer != 0) {
    lua_pushinteger(L, sum.integer);
  } else {
    lua_pushnumber(L, sum.number);
  }
}

void broadcast_value(lua_State* L, Comm& comm, int index, int root) {
  std::string bytes;
  if (comm.rank() == root) bytes = packed(L, index, "broadcast");
  move_value(L, comm, "broadcast", bytes,
             [&](char* data, int64_t size) { return broadcast(data, size, DType::u8, root); });
  push_unpacked(L, "broadcast", std::move(bytes));
}

void gather_values(lua_State* L, Comm& comm, int index) {
  auto ranks = static_cast<size_t>(comm.ranks());
  std::string own = packed(L, index, "all_gather"), head = head_of(own);
  std::string heads(kHeadBytes * ranks, '\0'), all;
  run_value(L, comm, "all_gather",
            all_gather(head.data(), heads.data(), length_of(head), DType::u8));
  uint64_t longest = 0;
  for (size_t i = 0; i < ranks; i++)
    longest = std::max(longest, check_head(L, "all_gather", heads.data() + i * kHeadBytes));
  if (longest > kInlineBytes) {
    own.resize(longest);
    all.resize(longest * ranks);
    run_value(L, comm, "all_gather", all_gather(own.data(), all.data(), length_of(own), DType::u8));
  }
  lua_createtable(L, comm.ranks(), 0);
  for (size_t i = 0; i < ranks; i++) {
    const char* its_head = heads.data() + i * kHeadBytes;
    uint64_t size = check_head(L, "all_gather", its_head);
    const char* from = longest > kInlineBytes ? all.data() + i * longest : its_head + sizeof size;
    push_unpacked(L, "all_gather", std::string(from, size));
    lua_rawseti(L, -2, static_cast<lua_Integer>(i) + 1);
  }
}

void send_value(lua_State* L, Comm& comm, int index, int rank) {
  std::string bytes = packed(L, index, "send");
  move_value(L, comm, "send", bytes,
             [&](char* data, int64_t size) { return send(data, size, DType::u8, rank); });
}

void receive_value(lua_State* L, Comm& comm, int rank) {
  std::string bytes;
  move_value(L, comm, "recv", bytes,
             [&](char* data, int64_t size) { return recv(data, size, DType::u8, rank); });
  push_unpacked(L, "recv", std::move(bytes));
}

}  // namespace flow::lua
