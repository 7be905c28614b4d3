#include "engine/submission/run_inputs.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/files.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/plan/remote_origin.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/prepare.hpp"

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

/// The input as it is on the disk now. An unchanged file is not read again.
Result<File> input_now(const File& file, const Store& store) {
  auto digest_of = [&](const std::string& path, const struct stat& info, bool) -> Result<Digest> {
    if (auto digest = remembered_digest(store, path, info)) return *digest;
    auto read = sha256_file(path);
    FLOW_TRY(read);
    return read->digest;
  };
  File now;
  now.origin = file.origin;
  std::vector<std::string> left_out;  // the run has already warned about it
  return read_input(std::move(now), 0, digest_of, left_out);
}

enum class InputState : uint8_t { same, other, gone };

struct InputCheck {
  InputState state = InputState::gone;  // gone: it cannot be read
  File now = {};                        // if it is unchanged
};

/// Compares the input on disk with what the run read.
InputCheck check_input(const File& file, const Store& store) {
  struct stat info {};
  if (::stat(file.origin.c_str(), &info) != 0) return {};
  bool is_file = !file.is_folder && S_ISREG(info.st_mode);
  if (is_file && static_cast<uint64_t>(info.st_size) != file.size) return {InputState::other};
  auto now = input_now(file, store);
  if (!now.ok()) return {};
  bool is_same = now->digest == file.digest && now->is_folder == file.is_folder;
  if (!is_same) return {InputState::other};
  return {InputState::same, std::move(*now)};
}

bool is_read_in_place(const File& file) {
  return file.size > kInputCopyMax && !is_remote_origin(file.origin);
}

/// The URL of a remote origin, as it is printed.
std::string shown_origin(const std::string& origin) {
  auto remote = parse_remote_origin(origin);
  return remote.ok() ? remote->url.substr(0, remote->url.find(" (")) : origin;
}

/// Whether the state may lack content of this input that it should have. Checked per entry of a
/// folder.
bool may_be_lost(const File& file, const Blobs& blobs) {
  return !is_read_in_place(file) && (file.is_folder || !blobs.has(file.digest, file.size));
}

/// Copies the content from `path`, which held it a moment ago.
Status restore(const std::string& path, const Digest& digest, uint64_t size, Blobs& blobs) {
  bool is_lost = !blobs.has(digest, size);
  if (!is_lost || ::access(path.c_str(), R_OK) != 0) return {};
  auto copied = blobs.put_file(path, false);
  FLOW_TRY(copied);
  return {};
}

}  // namespace

std::string encode_inputs(const Inputs& inputs) {
  std::vector<Value> files;
  for (File file : inputs.files) {
    file.entries.clear();  // the digest of a folder covers them
    files.emplace_back(std::move(file));
  }
  return encode_value(Value::map({{"params", inputs.params},
                                  {"files", Value::list(std::move(files))},
                                  {"config", inputs.config},
                                  {"revision", revision_value(inputs.revision)}}));
}

Result<Inputs> decode_inputs(std::string_view bytes) {
  auto value = decode_value(bytes);
  FLOW_TRY(value);
  Inputs inputs;
  if (const Value* params = value->find("params")) inputs.params = *params;
  if (const Value* config = value->find("config")) inputs.config = *config;
  if (const Value* revision = value->find("revision")) inputs.revision = get_revision(*revision);
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

InputDifferences compare_inputs(const Inputs& inputs, const Store& store, const Blobs& blobs) {
  InputDifferences found;
  for (const File& file : inputs.files) {
    if (is_remote_origin(file.origin)) {  // never asked again
      if (may_be_lost(file, blobs)) found.lost.push_back(shown_origin(file.origin));
      continue;
    }
    InputState state = check_input(file, store).state;
    if (state == InputState::same) continue;
    if (is_read_in_place(file))
      found.unkept.push_back(file.origin);
    else if (!file.is_folder && may_be_lost(file, blobs))
      found.lost.push_back(file.origin);
    else if (state == InputState::other)
      found.changed.push_back(file.origin);
  }
  return found;
}

Status restore_inputs(const Inputs& inputs, const Store& store, Blobs& blobs) {
  for (const File& file : inputs.files) {
    if (is_remote_origin(file.origin) || !may_be_lost(file, blobs)) continue;
    InputCheck check = check_input(file, store);
    if (check.state != InputState::same) continue;
    if (!file.is_folder) FLOW_TRY(restore(file.origin, file.digest, file.size, blobs));
    for (const File::Entry& entry : check.now.entries)
      FLOW_TRY(restore(file.origin + "/" + entry.path, entry.digest, entry.size, blobs));
  }
  return {};
}

Value current_params(const Inputs& inputs, const Value& original) {
  if (inputs.files.empty()) return original;
  auto now = [&](const auto& self, const Value& given) -> Value {
    if (given.kind() == Value::Kind::file) {
      const File& file = given.as_file();
      if (!file.digest.is_zero() || ::access(file.origin.c_str(), F_OK) == 0) return given;
      auto read = std::ranges::find_if(
          inputs.files, [&](const File& each) { return each.origin == file.origin; });
      const File* before = read == inputs.files.end() ? nullptr : find_file(original, read->digest);
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
