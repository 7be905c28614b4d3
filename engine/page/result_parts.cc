#include "engine/page/result_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "engine/base/files.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runs/run_rows.hpp"
#include "engine/store/store.hpp"
#include "engine/value/utf8.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

/// The state, and the result of one of its tasks.
struct OpenedResult {
  std::unique_ptr<Store> store;
  std::unique_ptr<Blobs> blobs;
  Value value;
};

Result<OpenedResult> open_result(const std::string& state_dir, const std::string& run,
                                 const std::string& task) {
  StoreOptions options;
  options.read_only = true;
  auto store = open_store(state_dir, options);
  FLOW_TRY(store);
  OpenedResult opened{std::move(*store), nullptr, {}};
  opened.blobs = std::make_unique<Blobs>(*opened.store, state_dir);
  auto record = select_record(*opened.store, run);
  FLOW_TRY(record);
  auto loaded = load_run(*opened.store, *opened.blobs, *record);
  FLOW_TRY(loaded);
  if (loaded->run == nullptr)
    return user_error(fmt::format("the tasks of the run {} were collected by gc", record->id));
  auto unit = find_unit(*loaded->run, task);
  FLOW_TRY(unit);
  if (loaded->run->units[*unit].status != core::UnitStatus::succeeded) return opened;
  InputResolver resolver([&](const Digest& digest) { return opened.blobs->get(digest); });
  auto value = resolver.result_of(*loaded->run, *unit);
  if (value.ok()) opened.value = **value;
  return opened;
}

/// Calls `visit(path, value)` for each tensor and file, until it returns false.
template <typename Visit>
bool visit_parts(const Value& value, const std::string& path, const Visit& visit) {
  if (value.kind() == Value::Kind::tensor || value.kind() == Value::Kind::file)
    return visit(path, value);
  if (value.kind() != Value::Kind::table) return true;
  const Value::Table& table = value.as_table();
  for (size_t i = 0; i < table.list.size(); i++)
    if (!visit_parts(table.list[i], fmt::format("{}[{}]", path, i + 1), visit)) return false;
  for (const auto& [key, field] : table.fields) {
    if (key.kind() != Value::Kind::string) continue;
    std::string below = path.empty() ? key.as_string() : path + "." + key.as_string();
    if (!visit_parts(field, below, visit)) return false;
  }
  return true;
}

double of_half(uint16_t bits) {
  int exponent = (bits >> 10) & 31;
  double fraction = bits & 1023;
  double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == 31)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

template <typename T>
T read_element(const char* at) {
  T element;
  std::memcpy(&element, at, sizeof element);
  return element;
}

double element_of(DType dtype, const char* at) {
  switch (dtype) {
    case DType::f32:
      return read_element<float>(at);
    case DType::f16:
      return of_half(read_element<uint16_t>(at));
    case DType::bf16: {
      uint32_t bits = uint32_t{read_element<uint16_t>(at)} << 16;
      float number;
      std::memcpy(&number, &bits, sizeof number);
      return number;
    }
    case DType::f64:
      return read_element<double>(at);
    case DType::i64:
      return static_cast<double>(read_element<int64_t>(at));
    case DType::i32:
      return read_element<int32_t>(at);
    default:
      return static_cast<unsigned char>(*at);
  }
}

void put_statistics(const std::string& data, DType dtype, ResultPart& part) {
  double sum = 0;
  uint64_t finite = 0;
  size_t size = dtype_size(dtype);
  for (size_t at = 0; at + size <= data.size(); at += size) {
    double element = element_of(dtype, data.data() + at);
    if (!std::isfinite(element)) {
      part.not_finite++;
      continue;
    }
    part.min = finite == 0 ? element : std::min(part.min, element);
    part.max = finite == 0 ? element : std::max(part.max, element);
    sum += element;
    finite++;
  }
  part.has_statistics = finite > 0;
  if (finite > 0) part.mean = sum / static_cast<double>(finite);
}

std::string picture_media(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return "image/png";
  return bytes.starts_with("\xff\xd8\xff") ? "image/jpeg" : "";
}

/// Text has no control characters but blanks and line ends.
bool is_text(std::string_view bytes) {
  return is_utf8(bytes) && std::ranges::none_of(bytes, [](char c) {
           return static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r' && c != '\t';
         });
}

/// The bytes of the file; of a large input those that its origin has now.
std::optional<std::string> content_of(const Blobs& blobs, const File& file) {
  if (file.size > kPartBytesMax) return std::nullopt;
  auto bytes = blobs.get(file.digest);
  if (bytes.ok()) return std::move(*bytes);
  return std::nullopt;
}

ResultPart part_of(const Blobs& blobs, const std::string& path, const Value& value) {
  ResultPart part;
  part.path = path;
  if (value.kind() == Value::Kind::tensor) {
    const Tensor& tensor = value.as_tensor();
    part.dtype = dtype_name(tensor.dtype);
    part.shape = tensor.shape;
    part.digest = tensor.digest;
    part.bytes = dtype_size(tensor.dtype);
    for (int64_t dimension : tensor.shape) part.bytes *= static_cast<uint64_t>(dimension);
    if (part.bytes > kPartBytesMax) return part;
    auto data = blobs.get(tensor.digest);
    if (data.ok()) put_statistics(*data, tensor.dtype, part);
    return part;
  }
  const File& file = value.as_file();
  part.name = file.name;
  part.digest = file.digest;
  part.bytes = file.size;
  if (file.is_folder) return part;
  auto content = content_of(blobs, file);
  if (!content) return part;
  part.media = picture_media(*content);
  if (!part.media.empty()) return part;
  std::string begin = cut_text(*content, kPartTextMax);
  if (!is_text(begin)) return part;
  part.media = "text/plain";
  part.text = std::move(begin);
  return part;
}

}  // namespace

Result<std::vector<ResultPart>> result_parts(const std::string& state_dir, const std::string& run,
                                             const std::string& task) {
  auto opened = open_result(state_dir, run, task);
  FLOW_TRY(opened);
  std::vector<ResultPart> parts;
  visit_parts(opened->value, "", [&](const std::string& path, const Value& value) {
    parts.push_back(part_of(*opened->blobs, path, value));
    return parts.size() < kResultPartsMax;
  });
  return parts;
}

Result<Picture> result_picture(const std::string& state_dir, const std::string& run,
                               const std::string& task, const std::string& digest) {
  auto opened = open_result(state_dir, run, task);
  FLOW_TRY(opened);
  Picture picture;
  visit_parts(opened->value, "", [&](const std::string&, const Value& value) {
    bool is_it = value.kind() == Value::Kind::file && !value.as_file().is_folder &&
                 value.as_file().digest.hex() == digest;
    if (!is_it) return true;
    picture.bytes = content_of(*opened->blobs, value.as_file()).value_or("");
    picture.media = picture_media(picture.bytes);
    return false;
  });
  if (picture.media.empty())
    return user_error(
        fmt::format("the result of `{}` has no PNG or JPEG with the digest `{}`, or "
                    "it is larger than {} MiB",
                    task, digest, kPartBytesMax >> 20));
  return picture;
}

}  // namespace flow
