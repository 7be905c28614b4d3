#include "engine/exports/crate_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/throwing.hpp"
#include "engine/blobs/blob_file.hpp"
#include "engine/query/export_result.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr uint32_t kFolderMode = 0777, kFileMode = 0666, kProgramMode = 0777;  // less the umask

[[noreturn]] void fail(const char* what, const std::string& path) {
  throw Failed(
      environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno))));
}

/// An open descriptor.
struct OpenFile {
  explicit OpenFile(int opened) : descriptor(opened) {}
  ~OpenFile() {
    if (descriptor >= 0) ::close(descriptor);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int descriptor;
};

}  // namespace

std::string safe_component(std::string text) {
  constexpr size_t kBytesMax = 200;
  std::string name = to_utf8(text);
  for (char& c : name) {
    auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '/') c = '_';
  }
  if (name.size() > kBytesMax) name = name.substr(character_begin(name, name.size() - kBytesMax));
  return name.empty() || name == "." || name == ".." ? "unnamed" : name;
}

std::string uri_of(std::string_view path) {
  std::string uri;
  for (char c : path) {
    auto byte = static_cast<unsigned char>(c);
    bool is_plain = byte < 0x80 && (std::isalnum(byte) != 0 ||
                                    std::string_view("/-._~").find(c) != std::string_view::npos);
    uri += is_plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return uri;
}

CrateFolder::CrateFolder(const Blobs& blobs, std::string directory)
    : blobs_(blobs), directory_(std::move(directory)) {
  ok_or_throw(make_dirs(directory_, kFolderMode));
}

std::string CrateFolder::place(const std::string& folder, const std::string& group,
                               const std::string& name) {
  std::string below = folder + "/" + (group.empty() ? "" : safe_component(group) + "/");
  std::string last = safe_component(name);
  return taken_.add(below + last, [&](int n) { return below + fmt::format("{}-", n) + last; });
}

void CrateFolder::make_folder(const fs::path& relative) const {
  fs::path folder = directory_;
  for (const fs::path& part : relative) {
    folder /= part;
    std::error_code failed;
    if (fs::is_symlink(fs::symlink_status(folder, failed)))
      throw Failed(user_error(
          fmt::format("`{}` is a link: a crate is not written to other folders; remove the link",
                      folder.string())));
  }
  ok_or_throw(make_dirs(folder.string(), kFolderMode));
}

void CrateFolder::write(const std::string& path, std::string_view content) {
  fs::path full = fs::path(directory_) / path;
  make_folder(fs::path(path).parent_path());
  ok_or_throw(write_file_atomic(full.string(), content, kFileMode));
}

void CrateFolder::copy(const File& file, const std::string& path) {
  if (!file.is_folder) return copy_blob(file.digest, file.origin, file.executable, path);
  make_folder(path);
  for (const File::Entry& entry : file.entries) {
    fs::path relative = fs::path(entry.path).lexically_normal();
    if (relative.empty() || relative.is_absolute() || *relative.begin() == "..")
      throw Failed(environment_error(
          fmt::format("the folder `{}` has the unsafe path `{}`", file.name, entry.path)));
    std::string origin = file.origin.empty() ? "" : (fs::path(file.origin) / relative).string();
    copy_blob(entry.digest, origin, entry.executable, (fs::path(path) / relative).string());
  }
}

void CrateFolder::copy_blob(const Digest& digest, const std::string& origin, bool executable,
                            const std::string& path) {
  fs::path full = fs::path(directory_) / path;
  make_folder(fs::path(path).parent_path());
  std::string temporary = (full.parent_path() / temporary_name()).string();
  OpenFile target(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         executable ? kProgramMode : kFileMode));
  if (target.descriptor < 0) fail("create", temporary);
  try {
    std::error_code failed;
    std::string object = blobs_.path_of(digest);
    std::string source = fs::exists(object, failed) ? object : origin;
    if (source.empty()) {
      std::string content = value_or_throw(blobs_.get(digest));
      if (!write_all(target.descriptor, content)) fail("write", temporary);
    } else {
      OpenFile from(::open(source.c_str(), O_RDONLY | O_CLOEXEC));
      if (from.descriptor < 0) fail("read", source);
      auto copied =
          value_or_throw(copy_and_hash(from.descriptor, source, target.descriptor, temporary));
      if (copied.digest != digest)
        throw Failed(environment_error(
            fmt::format("`{}` no longer has the content that the run read or made", source)));
    }
    if (::rename(temporary.c_str(), full.c_str()) != 0) fail("write", full.string());
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace flow
