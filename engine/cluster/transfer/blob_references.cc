#include "engine/cluster/transfer/blob_references.hpp"

#include <filesystem>
#include <unordered_set>
#include <utility>

#include "engine/blobs/checkpoint.hpp"
#include "engine/plan/values.hpp"
#include "engine/value/cbor.hpp"

namespace flow::cluster {

namespace {

constexpr size_t kPathBytesMax = 1024;

using InlineBlobs = std::vector<std::pair<Digest, std::string>>;

/// Whether this is a valid path of a checkpoint, below either side's folder.
bool is_checkpoint_path(const std::string& file) {
  std::filesystem::path path(file);
  bool is_below = file.starts_with("checkpoints/") && path.has_filename() &&
                  file == path.lexically_normal().native();
  return is_below && file.find('\0') == file.npos && file.size() <= kPathBytesMax;
}

class Collector {
 public:
  explicit Collector(const InlineBlobs& given) {
    for (const auto& [digest, bytes] : given) seen_.insert(digest);
  }

  Status add_bytes(std::string_view bytes) {
    if (!holds_tag(bytes)) return {};
    auto value = decode_value(bytes);
    FLOW_TRY(value);
    return add(*value);
  }
  Status add(const Value& value) {
    Status added;
    for_each_blob(value, [&](const Digest& digest, std::optional<uint64_t> size,
                             const std::string& origin) {
      if (size) return put({{digest, size}, origin, ""});
      added = environment_error("a tensor has a damaged shape: its size is not a number of bytes");
    });
    return added;
  }
  Status add_checkpoint(std::string_view bytes) {
    FLOW_TRY(add_bytes(bytes));
    auto row = decode_checkpoint_row(bytes);
    FLOW_TRY(row);
    if (row->file.empty()) return {};
    if (!is_checkpoint_path(row->file))
      return environment_error("the record of a checkpoint names the file `" + row->file +
                               "`, which is not a path of a checkpoint");
    put({{row->digest, std::nullopt}, "", row->file});
    return {};
  }
  Status add_fragment(std::string_view bytes) {
    auto fragment = decode_fragment(bytes);
    FLOW_TRY(fragment);
    Status added;
    for_each_value(*fragment, [&](const Value& value) {
      if (Status one = add(value); !one.ok()) added = one;
    });
    return added;
  }
  std::vector<BlobReference> take() { return std::move(references_); }

 private:
  void put(BlobReference reference) {
    if (seen_.insert(reference.blob.digest).second) references_.push_back(std::move(reference));
  }

  std::unordered_set<Digest, DigestHash> seen_;
  std::vector<BlobReference> references_;
};

bool has_origin(const Value& value) {
  if (value.kind() == Value::Kind::file) return !value.as_file().origin.empty();
  if (value.kind() != Value::Kind::table) return false;
  for (const Value& item : value.as_table().list)
    if (has_origin(item)) return true;
  for (const auto& [key, item] : value.as_table().fields)
    if (has_origin(item)) return true;
  return false;
}

Value stripped(const Value& value) {
  if (!has_origin(value)) return value;
  if (value.kind() == Value::Kind::file) {
    File file = value.as_file();
    file.origin.clear();
    return Value(std::move(file));
  }
  Value::Table table = value.as_table();
  for (Value& item : table.list) item = stripped(item);
  for (auto& [key, item] : table.fields) item = stripped(item);
  return Value(std::move(table));
}

}  // namespace

std::vector<BlobReference> referenced_blobs(const AttemptOrder& order) {
  Collector all(order.blobs);
  FLOW_CHECK(all.add_bytes(order.args).ok());
  // The attempt that reads a damaged value reports it.
  for (const auto* values : {&order.steps, &order.signals})
    for (const auto& [name, bytes] : *values) (void)all.add_bytes(bytes);
  if (order.has_checkpoint) (void)all.add_checkpoint(order.checkpoint);
  return all.take();
}

Result<std::vector<BlobReference>> referenced_blobs(const Report& report) {
  if (const auto* checkpoint = report.as<CheckpointReported>()) {
    Collector all(checkpoint->blobs);
    FLOW_TRY(all.add_checkpoint(checkpoint->value));
    return all.take();
  }
  if (const auto* step = report.as<StepReported>()) {
    Collector all(step->blobs);
    FLOW_TRY(all.add_bytes(step->value));
    return all.take();
  }
  if (const auto* finished = report.as<TaskFinished>()) {
    Collector all(finished->blobs);
    FLOW_TRY(all.add_bytes(finished->value));
    if (!finished->fragment.empty()) FLOW_TRY(all.add_fragment(finished->fragment));
    return all.take();
  }
  return std::vector<BlobReference>();
}

std::string without_origins(std::string_view args) {
  if (!holds_tag(args)) return std::string(args);
  auto value = decode_value(args);
  FLOW_CHECK(value.ok());
  return has_origin(*value) ? encode_value(stripped(*value)) : std::string(args);
}

}  // namespace flow::cluster
