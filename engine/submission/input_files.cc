// Reads the files that a script names. Their digests are cached by size, times and inode.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/plan/values.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/submission/remote_inputs.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

/// Identifies the content of a file without reading it.
std::string fingerprint(const struct stat& info) {
  return fmt::format("{} {} {}.{} {}.{}", info.st_size, info.st_ino, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
}

/// Replaces each file without a digest by the result of `take`.
class FileReplacer {
 public:
  explicit FileReplacer(const FileReader& take) : read_(take) {}

  Result<Value> value(const Value& given) {
    if (given.kind() == Value::Kind::file) {
      const File& file = given.as_file();
      if (!file.digest.is_zero() || file.origin.empty()) return given;
      auto done = replaced_.find(file.origin);
      if (done == replaced_.end()) {
        auto ingested = read_(file);
        FLOW_TRY(ingested);
        done = replaced_.emplace(file.origin, std::move(*ingested)).first;
      }
      File whole = done->second;
      whole.name = file.name;
      whole.anonymous = file.anonymous;
      return Value(std::move(whole));
    }
    if (!holds_file(given)) return given;
    Value::Table out;
    for (const Value& item : given.as_table().list) {
      auto replaced = value(item);
      FLOW_TRY(replaced);
      out.list.push_back(std::move(*replaced));
    }
    for (const auto& [key, field] : given.as_table().fields) {
      auto replaced = value(field);
      FLOW_TRY(replaced);
      out.fields.emplace_back(key, std::move(*replaced));
    }
    return Value(std::move(out));
  }

  static bool holds_file(const Value& value) {
    if (value.kind() == Value::Kind::file) return true;
    if (value.kind() != Value::Kind::table) return false;
    for (const Value& item : value.as_table().list) {
      if (holds_file(item)) return true;
    }
    for (const auto& [key, field] : value.as_table().fields) {
      if (holds_file(field)) return true;
    }
    return false;
  }

  bool found_any() const { return !replaced_.empty(); }

 private:
  const FileReader& read_;
  std::map<std::string, File> replaced_;
};

Error unreadable(const std::string& path, int error) {
  return user_error(fmt::format("cannot read the file `{}`: {}", path, std::strerror(error)));
}

Error failed_call(const char* what, const std::string& path, int code) {
  return user_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(code)));
}

Result<File> read_folder(File file, uint64_t copy_max, const FileHasher& digest_of,
                         std::vector<std::string>& warnings) {
  file.is_folder = true;
  auto listing = list_folder(file.origin, "", failed_call);
  FLOW_TRY(listing);
  for (const std::string& state : listing->states)
    warnings.push_back(
        fmt::format("`{}` in the folder `{}` is a state of flow and is left out of the input",
                    state, file.origin));
  for (const FolderFile& each : listing->files)
    file.size += static_cast<uint64_t>(each.info.st_size);
  bool copy = file.size <= copy_max;
  for (const FolderFile& each : listing->files) {
    auto digest = digest_of((fs::path(file.origin) / each.path).string(), each.info, copy);
    FLOW_TRY(digest);
    file.entries.push_back({each.path, (each.info.st_mode & S_IXUSR) != 0,
                            static_cast<uint64_t>(each.info.st_size), *digest});
  }
  file.digest = folder_digest(file.entries);
  if (copy) file.origin.clear();
  return file;
}

class FileIngester {
 public:
  FileIngester(Store& store, Blobs& blobs) : store_(store), blobs_(blobs) {}

  Result<Digest> digest_of(const std::string& path, const struct stat& info, bool copy) {
    std::string row = param_digest_key(path);
    std::string seen = fingerprint(info);
    auto remembered = remembered_digest(store_, path, info);
    bool is_known =
        remembered && (!copy || blobs_.has(*remembered, static_cast<uint64_t>(info.st_size)));
    if (is_known) return *remembered;
    Digest digest;
    if (copy && info.st_size <= static_cast<off_t>(kInlineBlobMax)) {
      auto bytes = read_file(path);
      if (!bytes.ok()) return user_error(bytes.error().message);
      auto put = blobs_.put(*bytes, batch_);
      FLOW_TRY(put);
      digest = *put;
    } else if (copy) {
      auto put = blobs_.put_file(path, false);
      FLOW_TRY(put);
      digest = *put;
    } else {
      auto hashed = sha256_file(path);
      if (!hashed.ok()) return user_error(hashed.error().message);
      digest = hashed->digest;
    }
    batch_.put(Family::kv, row, std::string(digest.view()) + seen);
    return digest;
  }

  Batch& batch() { return batch_; }

 private:
  Store& store_;
  Blobs& blobs_;
  Batch batch_;
};

// flow.native_operations("filters"): the library that the host program defined.
Status find_library(File& file, const OperationsLibrary& library_of) {
  std::string name = file.origin.substr(kOperationsOrigin.size());
  file.origin = library_of(name);
  if (!file.origin.empty()) return {};
  return user_error(
      fmt::format("the operations `{}` are not defined by this program: the embedding program "
                  "calls engine.define_operations(\"{}\", library)",
                  name, name));
}

}  // namespace

Result<File> read_input(File file, uint64_t copy_max, const FileHasher& digest_of,
                        std::vector<std::string>& warnings) {
  struct stat info {};
  if (::stat(file.origin.c_str(), &info) != 0) {
    int code = errno;
    std::string broken = broken_link(file.origin);
    if (broken.empty()) return unreadable(file.origin, code);
    return user_error(fmt::format("`{}` is {}, so it can't be an input", file.origin, broken));
  }
  if (S_ISDIR(info.st_mode)) return read_folder(std::move(file), copy_max, digest_of, warnings);
  if (!S_ISREG(info.st_mode)) {
    return user_error(
        fmt::format("`{}` is neither a file nor a folder, so it can't be an input", file.origin));
  }
  file.executable = (info.st_mode & S_IXUSR) != 0;
  file.size = static_cast<uint64_t>(info.st_size);
  bool copy = file.size <= copy_max;
  auto digest = digest_of(file.origin, info, copy);
  FLOW_TRY(digest);
  file.digest = *digest;
  if (copy) file.origin.clear();
  return file;
}

Result<bool> replace_files(Plan& plan, const FileReader& take) {
  FileReplacer replacer(take);
  auto replace = [&](Value& value) -> Status {
    if (!FileReplacer::holds_file(value)) return {};
    auto done = replacer.value(value);
    FLOW_TRY(done);
    value = std::move(*done);
    return {};
  };
  Status replaced;
  for_each_value(plan, [&](Value& value) {
    if (replaced.ok()) replaced = replace(value);
  });
  FLOW_TRY(replaced);
  return replacer.found_any();
}

std::optional<Digest> remembered_digest(const Store& store, const std::string& path,
                                        const struct stat& info) {
  auto row = store.get(Family::kv, param_digest_key(path));
  Digest digest;
  bool is_same = row.ok() && row->has_value() && (*row)->size() > sizeof digest.bytes &&
                 (*row)->substr(sizeof digest.bytes) == fingerprint(info) &&
                 Digest::from_bytes((*row)->substr(0, sizeof digest.bytes), digest);
  return is_same ? std::optional(digest) : std::nullopt;
}

Result<bool> ingest_files(Plan& plan, Store& store, Blobs& blobs,
                          const OperationsLibrary& library_of, RemoteInputs& remote,
                          std::vector<File>& read) {
  FileIngester ingest(store, blobs);
  auto digest_of = [&](const std::string& path, const struct stat& info, bool copy) {
    return ingest.digest_of(path, info, copy);
  };
  auto take = [&](const File& given) -> Result<File> {
    if (is_remote_origin(given.origin)) {
      auto fetched = remote.fetch(given);
      if (!fetched.ok() || fetched->digest.is_zero()) return fetched;
      read.push_back(*fetched);
      auto origin = parse_remote_origin(given.origin);
      FLOW_TRY(origin);
      read.back().origin = origin->stored_text();
      return fetched;
    }
    File file = given;
    bool is_library = file.origin.starts_with(kOperationsOrigin);
    if (is_library) FLOW_TRY(find_library(file, library_of));
    auto ingested = read_input(std::move(file), kInputCopyMax, digest_of, plan.warnings);
    if (ingested.ok() && !is_library) {
      read.push_back(*ingested);
      read.back().origin = given.origin;
    }
    return ingested;
  };
  auto found_any = replace_files(plan, take);
  FLOW_TRY(found_any);
  if (!ingest.batch().writes.empty()) FLOW_TRY(store.commit(ingest.batch()));
  return found_any;
}

}  // namespace flow
