// Converts states with tensors to safetensors files and back.
#include "engine/blobs/checkpoint.hpp"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <set>

#include "engine/crypto/base64.hpp"
#include "engine/value/utf8.hpp"

namespace flow {
namespace {

constexpr const char* kState = "flow.state";  // in the metadata: base64 of CBOR, what is read back
constexpr const char* kText = "state";        // the same for people: JSON with tensors by name
constexpr size_t kStateMax = size_t{64} << 20;
constexpr size_t kTextMax = size_t{1} << 20;
constexpr const char* kKind = "flow.checkpoint";
constexpr const char* kMetrics = "metrics";

// In a stored state each tensor is replaced by its number, encoded in the field of the digest.
Digest number_as_digest(uint64_t number) {
  Digest digest;
  std::memcpy(digest.bytes.data(), &number, sizeof number);
  return digest;
}

uint64_t number_of(const Digest& digest) {
  uint64_t number;
  std::memcpy(&number, digest.bytes.data(), sizeof number);
  return number;
}

/// `value` with each tensor replaced by change(tensor, path).
template <typename Change>
Value changed(const Value& value, const std::string& path, const Change& change) {
  if (value.kind() == Value::Kind::tensor) return change(value.as_tensor(), path);
  if (value.kind() != Value::Kind::table) return value;
  auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  Value::Table table;
  int64_t index = 0;
  for (const Value& item : value.as_table().list)
    table.list.push_back(changed(item, below(std::to_string(++index)), change));
  for (const auto& [key, item] : value.as_table().fields) {
    std::string name = key.kind() == Value::Kind::string ? to_utf8(key.as_string()) : to_json(key);
    table.fields.emplace_back(key, changed(item, below(name), change));
  }
  return Value(std::move(table));
}

std::string unused(const std::string& wanted, std::set<std::string>& names) {
  std::string name = wanted.empty() ? "tensor" : wanted;
  for (size_t number = 2; !names.insert(name).second; number++)
    name = fmt::format("{}#{}", wanted, number);
  return name;
}

void collect_files(const Value& value, std::vector<Value>& out) {
  if (value.kind() == Value::Kind::file) out.push_back(value);
  if (value.kind() != Value::Kind::table) return;
  for (const Value& item : value.as_table().list) collect_files(item, out);
  for (const auto& [key, item] : value.as_table().fields) collect_files(item, out);
}

const std::string* metadata_of(const SafetensorsHeader& header, std::string_view name) {
  for (const auto& [key, text] : header.metadata) {
    if (key == name) return &text;
  }
  return nullptr;
}

Value value_of(const MetricSteps& steps) {
  std::vector<std::pair<Value, Value>> fields;
  for (const auto& [name, step] : steps) fields.emplace_back(name, step);
  return Value::map(std::move(fields));
}

MetricSteps metric_steps_in(const Value& value) {
  MetricSteps steps;
  if (value.kind() != Value::Kind::table) return steps;
  for (const auto& [name, step] : value.as_table().fields) {
    bool fits = name.kind() == Value::Kind::string && step.kind() == Value::Kind::integer;
    if (fits) steps[name.as_string()] = step.as_integer();
  }
  return steps;
}

Error foreign() { return user_error("it is not a checkpoint of flow, or it is damaged"); }

}  // namespace

bool holds_tensors(const Value& state) {
  if (state.kind() == Value::Kind::tensor) return true;
  if (state.kind() != Value::Kind::table) return false;
  for (const Value& item : state.as_table().list) {
    if (holds_tensors(item)) return true;
  }
  for (const auto& [key, item] : state.as_table().fields) {
    if (holds_tensors(item)) return true;
  }
  return false;
}

Value files_in(const Value& state) {
  std::vector<Value> files;
  collect_files(state, files);
  return Value::list(std::move(files));
}

Result<CheckpointFile> flatten_checkpoint(const Value& state) {
  SafetensorsHeader header;
  std::map<std::string, Bytes> bytes;
  std::vector<Value> names;
  std::set<std::string> taken = {"__metadata__"};
  Value kept = changed(state, "", [&](const Tensor& tensor, const std::string& path) {
    std::string name = unused(path, taken);
    header.tensors.push_back({name, tensor.dtype, tensor.shape});
    bytes.emplace(name, tensor.data);
    Tensor place;
    place.dtype = tensor.dtype;
    place.shape = tensor.shape;
    place.digest = number_as_digest(names.size());
    names.emplace_back(name);
    return Value(std::move(place));
  });
  Value text = changed(kept, "", [&](const Tensor& place, const std::string&) {
    return names[number_of(place.digest)];
  });
  std::string encoded =
      encode_value(Value::map({{"names", Value::list(std::move(names))}, {"state", kept}}));
  if (encoded.size() > kStateMax)
    return user_error(
        fmt::format("besides its tensors the state has {} MiB of tables and strings, and the limit "
                    "is {}: turn long lists into tensors",
                    encoded.size() >> 20, kStateMax >> 20));
  header.metadata.emplace_back(kState, base64_encode(encoded));
  std::string json = to_json(text);
  if (json.size() <= kTextMax) header.metadata.emplace_back(kText, std::move(json));
  auto head = lay_out_safetensors(header);
  FLOW_TRY(head);
  CheckpointFile file{std::move(*head), {}};
  for (const SafetensorsEntry& tensor : header.tensors) {
    Bytes& content = bytes[tensor.name];
    FLOW_CHECK(content->size() == tensor.end - tensor.begin);
    file.tensors.push_back(std::move(content));
  }
  return file;
}

Result<Value> unflatten_checkpoint(const Bytes& content) {
  auto header = read_safetensors(*content, content->size());
  FLOW_TRY(header);
  const std::string* text = metadata_of(*header, kState);
  std::string encoded;
  if (text == nullptr || !base64_decode(*text, encoded)) return foreign();
  auto whole = decode_value(encoded);
  FLOW_TRY(whole);
  const Value* names = whole->find("names");
  const Value* kept = whole->find("state");
  if (names == nullptr || kept == nullptr || names->kind() != Value::Kind::table) return foreign();
  std::map<std::string, const SafetensorsEntry*> places;
  for (const SafetensorsEntry& tensor : header->tensors) places[tensor.name] = &tensor;
  bool good = true;
  Value state = changed(*kept, "", [&](const Tensor& place, const std::string&) {
    const auto& list = names->as_table().list;
    uint64_t number = number_of(place.digest);
    bool is_name = number < list.size() && list[number].kind() == Value::Kind::string;
    auto found = is_name ? places.find(list[number].as_string()) : places.end();
    bool fits = found != places.end() && found->second->dtype == place.dtype &&
                found->second->shape == place.shape;
    if (!fits) {
      good = false;
      return Value();
    }
    Tensor tensor = place;
    tensor.digest = {};
    tensor.data = content.part(found->second->begin, found->second->end - found->second->begin);
    return Value(std::move(tensor));
  });
  if (!good) return foreign();
  return state;
}

std::string encode_checkpoint_row(const CheckpointRow& row, const Value& files) {
  std::vector<std::pair<Value, Value>> fields;
  if (row.state) {
    fields = {{kKind, "value"}, {"value", *row.state}};
  } else {
    fields = {{kKind, "file"},
              {"file", row.file},
              {"digest", std::string(row.digest.view())},
              {"needs", files}};
  }
  if (!row.metric_steps.empty()) fields.emplace_back(kMetrics, value_of(row.metric_steps));
  return encode_value(Value::map(std::move(fields)));
}

Result<CheckpointRow> decode_checkpoint_row(std::string_view bytes) {
  auto value = decode_value(bytes);
  FLOW_TRY(value);
  const Error damaged = internal_error("the row of a checkpoint is damaged");
  if (value->is_nil()) return damaged;  // no task can save nil
  CheckpointRow row;
  const Value* kind = value->find(std::string_view(kKind));
  if (kind == nullptr || kind->kind() != Value::Kind::string) {
    row.state = std::move(*value);  // of a state that an older flow wrote
    return row;
  }
  if (const Value* steps = value->find(std::string_view(kMetrics)))
    row.metric_steps = metric_steps_in(*steps);
  const Value *state = value->find("value"), *file = value->find("file"),
              *digest = value->find("digest");
  if (kind->as_string() == "value" && state != nullptr) {
    row.state = *state;
    return row;
  }
  bool good = kind->as_string() == "file" && file != nullptr && digest != nullptr &&
              file->kind() == Value::Kind::string && digest->kind() == Value::Kind::string &&
              Digest::from_bytes(digest->as_string(), row.digest);
  if (!good) return damaged;
  row.file = file->as_string();
  return row;
}

}  // namespace flow
