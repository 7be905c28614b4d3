// Array formats of other programs: IDX (MNIST) and NPY (NumPy).
#include "lua/library/arrays.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "kernels/shared/view.hpp"
#include "kernels/tensor/runtime.hpp"

namespace flow::lua {
namespace {

constexpr size_t kRankMax = kernels::kRankMax;
constexpr int64_t kElementsMax = int64_t{1} << 40;

// The type of an element in the file, and the tensor type that holds it: a narrow integer is
// widened.
struct StoredFormat {
  size_t size = 0;
  bool is_signed = true;
  bool big_endian = false;
  DType dtype = DType::f32;
  bool widened = false;
};

// The number of elements, or -1 if it is too large; the limit also holds for the strides of a
// tensor without elements.
int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  bool is_empty = false;
  for (int64_t size : shape) {
    is_empty = is_empty || size == 0;
    int64_t stride = std::max<int64_t>(size, 1);
    if (count > kElementsMax / stride) return -1;
    count *= stride;
  }
  return is_empty ? 0 : count;
}

template <typename From>
void widen(const char* in, size_t count, std::string& out, DType dtype) {
  for (size_t i = 0; i < count; i++) {
    From narrow;
    std::memcpy(&narrow, in + i * sizeof narrow, sizeof narrow);
    if (dtype == DType::i32) {
      auto wide = static_cast<int32_t>(narrow);
      std::memcpy(out.data() + i * sizeof wide, &wide, sizeof wide);
    } else {
      auto wide = static_cast<int64_t>(narrow);
      std::memcpy(out.data() + i * sizeof wide, &wide, sizeof wide);
    }
  }
}

Status check_size(size_t bytes, const StoredFormat& stored, const std::vector<int64_t>& sizes) {
  int64_t count = count_of(sizes);
  if (count >= 0 && static_cast<uint64_t>(count) <= bytes / stored.size &&
      static_cast<uint64_t>(count) * stored.size == bytes)
    return {};
  std::string shape;
  for (int64_t size : sizes) shape += (shape.empty() ? "" : " x ") + std::to_string(size);
  return user_error(fmt::format("its header has {} elements of {} bytes, and {} bytes follow",
                                shape.empty() ? "1" : shape, stored.size, bytes));
}

Result<Array> take_elements(std::string_view body, const StoredFormat& stored, Array array) {
  FLOW_TRY(check_size(body.size(), stored, array.shape));
  auto count = static_cast<size_t>(count_of(array.shape));
  array.dtype = stored.dtype;
  std::string bytes(body);
  if (stored.big_endian && stored.size > 1)
    for (size_t at = 0; at < bytes.size(); at += stored.size)
      std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                   bytes.begin() + static_cast<std::ptrdiff_t>(at + stored.size));
  if (stored.widened) {
    array.bytes.resize(count * dtype_size(stored.dtype));
    if (stored.size == 1) widen<int8_t>(bytes.data(), count, array.bytes, stored.dtype);
    if (stored.size == 2 && stored.is_signed)
      widen<int16_t>(bytes.data(), count, array.bytes, stored.dtype);
    if (stored.size == 2 && !stored.is_signed)
      widen<uint16_t>(bytes.data(), count, array.bytes, stored.dtype);
    if (stored.size == 4) widen<uint32_t>(bytes.data(), count, array.bytes, stored.dtype);
  } else {
    array.bytes = std::move(bytes);
  }
  if (stored.dtype == DType::boolean)
    for (char& byte : array.bytes) byte = byte != 0;
  return array;
}

}  // namespace

// ---- IDX: two zero bytes, a type, the number of dimensions, each size, the elements; big-endian.

Result<Array> parse_idx(std::string_view text) {
  if (text.size() < 4 || text[0] != 0 || text[1] != 0)
    return user_error("it is not an IDX file: such a file begins with two zero bytes");
  StoredFormat stored;
  stored.big_endian = true;
  auto type = static_cast<unsigned char>(text[2]);
  switch (type) {
    case 0x08:
      stored = {1, false, true, DType::u8, false};
      break;
    case 0x09:
      stored = {1, true, true, DType::i32, true};
      break;
    case 0x0B:
      stored = {2, true, true, DType::i32, true};
      break;
    case 0x0C:
      stored = {4, true, true, DType::i32, false};
      break;
    case 0x0D:
      stored = {4, true, true, DType::f32, false};
      break;
    case 0x0E:
      stored = {8, true, true, DType::f64, false};
      break;
    default:
      return user_error(fmt::format(
          "its element type 0x{:02X} is not an IDX type: expected 08, 09, 0B, 0C, 0D or 0E", type));
  }
  auto rank = static_cast<size_t>(static_cast<unsigned char>(text[3]));
  if (rank > kRankMax)
    return user_error(fmt::format("it has {} dimensions; a tensor has at most {}", rank, kRankMax));
  text.remove_prefix(4);
  if (text.size() < 4 * rank) return user_error("it ends within its header");
  Array array;
  for (size_t dim = 0; dim < rank; dim++) {
    uint32_t size = 0;
    for (size_t i = 0; i < 4; i++)
      size = (size << 8) | static_cast<unsigned char>(text[dim * 4 + i]);
    array.shape.push_back(size);
  }
  return take_elements(text.substr(4 * rank), stored, std::move(array));
}

// ---- NPY: a magic, a version, the length of a header that is a Python dictionary, the elements.

namespace {

// Reads {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } and nothing else.
class NpyHeader {
 public:
  explicit NpyHeader(std::string_view text) : text_(text) {}

  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;

  bool read() {
    if (!take('{')) return false;
    bool has_descr = false, has_order = false, has_shape = false;
    while (!take('}')) {
      std::string key;
      if (!quoted(key) || !take(':')) return false;
      bool* seen = key == "descr" ? &has_descr : key == "fortran_order" ? &has_order : &has_shape;
      if (*seen) return false;
      *seen = true;
      bool good = key == "descr"           ? quoted(descr)
                  : key == "fortran_order" ? truth()
                  : key == "shape"         ? tuple()
                                           : false;
      if (!good) return false;
      if (!take(',') && !peek('}')) return false;
    }
    skip();
    return has_descr && has_order && has_shape && at_ == text_.size();
  }

 private:
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) at_++;
  }
  bool peek(char c) {
    skip();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool take(char c) {
    if (!peek(c)) return false;
    at_++;
    return true;
  }
  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }
  bool quoted(std::string& out) {
    skip();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
    size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return true;
  }
  bool truth() {
    skip();
    if (word("False")) return true;
    fortran_order = word("True");
    return fortran_order;
  }
  bool tuple() {
    if (!take('(')) return false;
    while (!take(')')) {
      skip();
      int64_t size = 0;
      auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0 || shape.size() >= kRankMax) return false;
      at_ = static_cast<size_t>(end - text_.data());
      if (at_ < text_.size() && text_[at_] == 'L') at_++;  // Python 2 writes long integers this way
      shape.push_back(size);
      if (!take(',') && !peek(')')) return false;
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

bool stored_as(std::string_view descr, StoredFormat& out) {
  if (descr.size() != 3) return false;
  char order = descr[0];
  if (order != '<' && order != '>' && order != '|' && order != '=') return false;
  out.big_endian = order == '>';
  out.size = static_cast<size_t>(descr[2] - '0');
  std::string_view kind = descr.substr(1);
  out.is_signed = kind[0] != 'u';
  struct NpyType {
    std::string_view kind;
    DType dtype;
    bool widened;
  };
  static constexpr NpyType known[] = {
      {"f2", DType::f16, false}, {"f4", DType::f32, false},    {"f8", DType::f64, false},
      {"i8", DType::i64, false}, {"i4", DType::i32, false},    {"i2", DType::i32, true},
      {"i1", DType::i32, true},  {"u1", DType::u8, false},     {"u2", DType::i32, true},
      {"u4", DType::i64, true},  {"b1", DType::boolean, false}};
  for (const NpyType& each : known) {
    if (each.kind != kind) continue;
    out.dtype = each.dtype;
    out.widened = each.widened;
    return true;
  }
  return false;
}

const char* descr_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return "<f2";
    case DType::f32:
      return "<f4";
    case DType::f64:
      return "<f8";
    case DType::i64:
      return "<i8";
    case DType::i32:
      return "<i4";
    case DType::u8:
      return "|u1";
    case DType::boolean:
      return "|b1";
    case DType::bf16:
      break;
  }
  FLOW_CHECK(!"NumPy has no bf16");
  return "";
}

// Column-major to row-major: the same elements with the dimensions reversed, then copied.
void to_row_major(Array& array) {
  kernels::Shape reversed, shape;
  for (int64_t size : array.shape) shape.push(size);
  for (int dim = shape.rank - 1; dim >= 0; dim--) reversed.push(shape[dim]);
  kernels::View from = kernels::dense(array.dtype, reversed, array.bytes.data());
  for (int dim = 0; dim < shape.rank / 2; dim++)
    from = kernels::swap_dims(from, dim, shape.rank - 1 - dim);
  std::string bytes(array.bytes.size(), '\0');
  tensors::call({}, &kernels::Kernels::copy, "copy", from,
                kernels::dense(array.dtype, shape, bytes.data()));
  array.bytes = std::move(bytes);
}

// The type of the elements, and where they begin.
struct NpyPlan {
  StoredFormat stored;
  std::vector<int64_t> shape;
  bool by_columns = false;
  size_t begin = 0;
};

Result<NpyPlan> plan_npy(std::string_view text) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (!text.starts_with(kMagic) || text.size() < 10)
    return user_error(
        "it is not an NPY file: such a file begins with \\x93NUMPY (an .npz is a zip of them)");
  int version = static_cast<unsigned char>(text[6]);
  if (version < 1 || version > 3)
    return user_error(fmt::format("its NPY version {} is not 1, 2 or 3", version));
  size_t width = version == 1 ? 2 : 4;
  if (text.size() < 8 + width) return user_error("it ends within its header");
  size_t length = 0;
  for (size_t i = width; i-- > 0;) length = (length << 8) | static_cast<unsigned char>(text[8 + i]);
  size_t begin = 8 + width + length;
  text.remove_prefix(8 + width);
  if (text.size() < length) return user_error("it ends within its header");
  NpyHeader header(text.substr(0, length));
  if (!header.read())
    return user_error(
        fmt::format("its header is not a dictionary of descr, fortran_order and shape of up to "
                    "{} dimensions",
                    kRankMax));
  StoredFormat stored;
  if (!stored_as(header.descr, stored))
    return user_error(
        fmt::format("its element type `{}` is not supported: expected one of f2, f4, f8, i1, i2, "
                    "i4, i8, u1, u2, u4, b1",
                    header.descr));
  bool by_columns = header.fortran_order && header.shape.size() > 1;
  return NpyPlan{stored, std::move(header.shape), by_columns, begin};
}

}  // namespace

Result<Array> parse_npy(std::string_view text) {
  auto plan = plan_npy(text);
  FLOW_TRY(plan);
  Array array;
  array.shape = std::move(plan->shape);
  auto taken = take_elements(text.substr(plan->begin), plan->stored, std::move(array));
  if (taken.ok() && plan->by_columns) to_row_major(*taken);
  return taken;
}

Result<std::optional<ArrayPlace>> place_npy(std::string_view text) {
  auto plan = plan_npy(text);
  FLOW_TRY(plan);
  const StoredFormat& stored = plan->stored;
  bool is_as_here = !stored.widened && !(stored.big_endian && stored.size > 1) && !plan->by_columns;
  if (!is_as_here) return std::optional<ArrayPlace>();
  FLOW_TRY(check_size(text.size() - plan->begin, stored, plan->shape));
  return std::optional<ArrayPlace>(
      {stored.dtype, std::move(plan->shape), plan->begin, text.size() - plan->begin});
}

std::string npy_header(DType dtype, const std::vector<int64_t>& shape) {
  std::string sizes;
  for (int64_t size : shape) sizes += std::to_string(size) + ",";
  if (shape.size() > 1) sizes.pop_back();
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                   descr_of(dtype), sizes);
  constexpr size_t kAlign = 64, kBefore = 10;
  header.append(kAlign - 1 - (header.size() + kBefore) % kAlign, ' ');
  header += '\n';
  std::string out = "\x93NUMPY\x01";
  out += '\0';
  out += static_cast<char>(header.size() & 255);
  out += static_cast<char>(header.size() >> 8);
  return out + header;
}

}  // namespace flow::lua
