#include "engine/driver/inputs.hpp"

#include <unistd.h>

#include <algorithm>

#include "engine/base/files.hpp"
#include "engine/driver/prepare.hpp"
#include "engine/store/keys.hpp"

namespace flow {

namespace {

/// The file with this digest in `value`, or null.
const File* find_file(const Value& value, const Digest& digest) {
  if (value.kind() == Value::Kind::file)
    return value.as_file().digest == digest ? &value.as_file() : nullptr;
  if (value.kind() != Value::Kind::table) return nullptr;
  const File* found = nullptr;
  for (const Value& item : value.as_table().list) {
    if (found == nullptr) found = find_file(item, digest);
  }
  for (const auto& [key, field] : value.as_table().fields) {
    if (found == nullptr) found = find_file(field, digest);
  }
  return found;
}

bool is_changed(const File& file, const Store& store) {
  auto digest_of = [&](const std::string& path, const struct stat& info, bool) -> Result<Digest> {
    if (auto digest = remembered_digest(store, path, info)) return *digest;
    auto read = sha256_file(path);
    FLOW_TRY(read);
    return read->digest;
  };
  struct stat info {};
  if (::stat(file.origin.c_str(), &info) != 0) return false;
  bool is_file = !file.is_folder && S_ISREG(info.st_mode);
  if (is_file && static_cast<uint64_t>(info.st_size) != file.size) return true;
  File now;
  now.origin = file.origin;
  std::vector<std::string> left_out;  // the run has warned of it
  auto read = read_input(std::move(now), 0, digest_of, left_out);
  return read.ok() && (read->digest != file.digest || read->is_folder != file.is_folder);
}

}  // namespace

std::string encode_inputs(const Inputs& inputs) {
  std::vector<Value> files;
  for (File file : inputs.files) {
    file.entries.clear();  // the digest of a folder tells them
    files.emplace_back(std::move(file));
  }
  return encode_value(
      Value::map({{"params", inputs.params}, {"files", Value::list(std::move(files))}}));
}

Result<Inputs> decode_inputs(std::string_view bytes) {
  auto value = decode_value(bytes);
  FLOW_TRY(value);
  Inputs inputs;
  if (const Value* params = value->find("params")) inputs.params = *params;
  const Value* files = value->find("files");
  if (files == nullptr || files->kind() != Value::Kind::table) return inputs;
  for (const Value& file : files->as_table().list) {
    if (file.kind() == Value::Kind::file) inputs.files.push_back(file.as_file());
  }
  return inputs;
}

Result<Inputs> inputs_of(const Store& store, const std::string& run) {
  auto row = store.get(Family::kv, inputs_key(run));
  FLOW_TRY(row);
  if (!row->has_value()) return Inputs{};
  return decode_inputs(**row);
}

std::vector<std::string> changed_inputs(const Inputs& inputs, const Store& store) {
  std::vector<std::string> changed;
  for (const File& file : inputs.files) {
    if (is_changed(file, store)) changed.push_back(file.origin);
  }
  return changed;
}

Value params_of_now(const Inputs& inputs, const Value& taken) {
  if (inputs.files.empty()) return taken;
  auto now = [&](const auto& self, const Value& given) -> Value {
    if (given.kind() == Value::Kind::file) {
      const File& file = given.as_file();
      if (!file.digest.is_zero() || ::access(file.origin.c_str(), F_OK) == 0) return given;
      auto read = std::ranges::find_if(
          inputs.files, [&](const File& each) { return each.origin == file.origin; });
      const File* before = read == inputs.files.end() ? nullptr : find_file(taken, read->digest);
      if (before == nullptr) return given;
      File kept = *before;
      kept.name = file.name;
      return Value(std::move(kept));
    }
    if (given.kind() != Value::Kind::table) return given;
    Value::Table table = given.as_table();
    for (Value& item : table.list) item = self(self, item);
    for (auto& [key, field] : table.fields) field = self(self, field);
    return Value(std::move(table));
  };
  return now(now, inputs.params);
}

}  // namespace flow
