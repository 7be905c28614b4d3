#include "engine/client/remote_export.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "engine/base/copy_stop.hpp"
#include "engine/base/files.hpp"
#include "engine/base/throwing.hpp"
#include "engine/blobs/locked_file.hpp"
#include "engine/client/blob_frames.hpp"
#include "engine/client/messages.hpp"
#include "engine/query/export_result.hpp"
#include "engine/query/overlay_store.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

void add_blobs(const Value& value, std::set<Digest>& seen,
               std::vector<std::pair<Digest, std::string>>& found) {
  auto add = [&](const Digest& digest, const std::string& origin) {
    if (seen.insert(digest).second) found.emplace_back(digest, origin);
  };
  if (value.kind() == Value::Kind::tensor) return add(value.as_tensor().digest, "");
  if (value.kind() == Value::Kind::file) {
    const File& file = value.as_file();
    if (!file.is_folder) add(file.digest, file.origin);
    for (const File::Entry& entry : file.entries)
      add(entry.digest, file.origin.empty() ? "" : (fs::path(file.origin) / entry.path).string());
  }
  if (value.kind() != Value::Kind::table) return;
  for (const Value& item : value.as_table().list) add_blobs(item, seen, found);
  for (const auto& [key, item] : value.as_table().fields) add_blobs(item, seen, found);
}

/// A temporary folder for blobs in the target folder, removed by the destructor. It is locked, so
/// that a later export can remove the folder of a killed process.
class StagingStore {
 public:
  explicit StagingStore(const std::string& directory) {
    make_target(directory);
    do {
      if (held_ >= 0) ::close(held_);
      path_ = directory + "/" + temporary_name();
      if (::mkdir(path_.c_str(), 0700) != 0)
        throw Failed(environment_error(
            fmt::format("cannot write into `{}`: {}", directory, std::strerror(errno))));
      held_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } while (held_ >= 0 && !lock_file(held_));
  }
  ~StagingStore() {
    if (held_ >= 0) ::close(held_);
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  StagingStore(const StagingStore&) = delete;
  StagingStore& operator=(const StagingStore&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int held_ = -1;
};

}  // namespace

std::vector<std::pair<Digest, std::string>> blobs_of(const Value& value) {
  std::set<Digest> seen;
  std::vector<std::pair<Digest, std::string>> found;
  add_blobs(value, seen, found);
  return found;
}

Value strip_origins(const Value& value) {
  if (value.kind() == Value::Kind::file) {
    File file = value.as_file();
    file.origin.clear();
    return Value(std::move(file));
  }
  if (value.kind() != Value::Kind::table) return value;
  Value::Table out;
  for (const Value& item : value.as_table().list) out.list.push_back(strip_origins(item));
  for (const auto& [key, item] : value.as_table().fields)
    out.fields.emplace_back(key, strip_origins(item));
  return Value(std::move(out));
}

namespace {

/// What a head sends never leads out of the target.
std::vector<std::string> checked_folders(std::vector<std::string> folders) {
  for (const std::string& folder : folders) {
    for (size_t at = 0; at < folder.size();) {
      size_t end = std::min(folder.find('/', at), folder.size());
      std::string name = folder.substr(at, end - at);
      bool is_sound =
          !name.empty() && name != "." && name != ".." && name.find('\0') == std::string::npos;
      if (!is_sound || end + 1 == folder.size())
        throw Failed(environment_error("the head sent an unsafe folder name for the result"));
      at = end + 1;
    }
  }
  return folders;
}

}  // namespace

std::vector<std::string> receive_export(EngineConnection& connection, const std::string& name,
                                        const std::string& directory) {
  StagingStore staging(directory);
  while (true) {
    ok_or_throw(check_copies_running(directory));
    ServerReply reply = value_or_throw(connection.receive<ServerReply>());
    if (reply.has_error()) throw Failed(get_error(reply.error()));
    if (reply.has_exported_value()) {
      Value value = value_or_throw(value_from_bytes(reply.exported_value().value()));
      auto store = make_overlay(nullptr);
      const auto& folders = reply.exported_value().folders();
      return export_result(Blobs(*store, staging.path()), value, name, directory,
                           checked_folders({folders.begin(), folders.end()}));
    }
    Digest digest;
    if (!reply.has_next_blob() || !Digest::from_bytes(reply.next_blob().digest(), digest))
      throw Failed(environment_error("the head sent a message that is not part of a blob"));
    ok_or_throw(receive_blob<ServerReply>(connection, digest, staging.path(),
                                          [&] { return check_copies_running(directory); }));
  }
}

}  // namespace flow
