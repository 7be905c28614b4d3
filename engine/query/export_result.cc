// Copies blobs under their names. Names in a value are data: they never lead out of the folder.
#include "engine/query/export_result.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/copy_stop.hpp"
#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/base/throwing.hpp"
#include "engine/blobs/blob_file.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/blobs/locked_file.hpp"
#include "engine/query/upload_result.hpp"
#include "engine/value/json.hpp"
#include "engine/value/utf8.hpp"
#include "flow/flow.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTemporary = ".flow-copy-";
constexpr size_t kRandomLength = 24;  // long enough not to equal the name of a user's file

}  // namespace

std::string temporary_name() { return std::string(kTemporary) + random_name(kRandomLength); }

namespace {

/// A file that is written in the folder of `path` and replaces it atomically when it is kept. Its
/// own name is random and short, because a name derived from `path` could equal that of another
/// result or be too long for the system. Its mode is 0666 or 0777 less the umask. It is not synced,
/// because the state still has the data. It is locked until it is renamed; an unlocked temporary
/// file was left by a killed process.
class NewFile {
 public:
  NewFile(const fs::path& path, bool executable) : path_(path) {
    do {
      release();
      temporary_ = path.parent_path() / temporary_name();
      descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                           executable ? 0777 : 0666);
      if (descriptor_ < 0) fail("create");
      held_ = ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
      if (held_ < 0) fail("create");
    } while (!lock_file(held_));
  }
  ~NewFile() {
    if (descriptor_ >= 0) ::unlink(temporary_.c_str());
    release();
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::string path() const { return path_.string(); }
  void write(std::string_view bytes) {
    constexpr size_t kPiece = 1 << 20;
    for (size_t at = 0; at < bytes.size(); at += kPiece) {
      ok_or_throw(check_copies_running(path()));
      if (!write_all(descriptor_, bytes.substr(at, kPiece))) fail("write");
    }
  }
  void keep() {
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("write");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("write");
    release();
  }

 private:
  void release() {
    for (int* each : {&descriptor_, &held_}) {
      if (*each >= 0) ::close(std::exchange(*each, -1));
    }
  }
  [[noreturn]] void fail(const char* what) {
    int code = errno;
    ::unlink(temporary_.c_str());
    release();
    throw Failed(environment_error(
        fmt::format("cannot {} `{}`: {}", what, path_.string(), std::strerror(code))));
  }

  fs::path path_, temporary_;
  int descriptor_ = -1, held_ = -1;  // one open file: closing the first reports failed writes
};

bool is_temporary(const std::string& name) {
  auto is_random = [](char c) { return ('0' <= c && c <= '9') || ('a' <= c && c <= 'z'); };
  return name.starts_with(kTemporary) && name.size() == kTemporary.size() + kRandomLength &&
         std::ranges::all_of(name.substr(kTemporary.size()), is_random);
}

/// Removes temporary files of killed copies from this folder.
void remove_leftovers(const fs::path& folder) {
  std::error_code failed;
  for (fs::directory_iterator walk(folder, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    if (is_temporary(walk->path().filename().string())) remove_abandoned(walk->path().string());
  }
}

/// Copies all of `source` and returns the digest of the copied bytes.
Digest copy_bytes(const std::string& source, NewFile& target) {
  int from = ::open(source.c_str(), O_RDONLY | O_CLOEXEC);
  if (from < 0)
    throw Failed(
        environment_error(fmt::format("cannot read `{}`: {}", source, std::strerror(errno))));
  auto content = copy_and_hash(from, source, target.descriptor(), target.path());
  ::close(from);
  return value_or_throw(std::move(content)).digest;
}

/// `stem` and `end` as one file name, cut at a character if it is too long for the system.
std::string fitting_name(std::string stem, const std::string& end) {
  size_t room = NAME_MAX - std::min<size_t>(end.size(), NAME_MAX);
  if (stem.size() > room) stem.resize(character_begin(stem, room));
  return stem + end;
}

/// Bytes 2 and 3 of a float are the bfloat16 of the same value.
std::string widened_bf16(std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::string wide;
  wide.reserve(2 * bytes.size());
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    wide.append(2, '\0');
    wide.append(bytes.substr(i, 2));
  }
  return wide;
}

/// The state that the folder is or lies in; "" if there is none. A folder below `scratch` belongs
/// to a task, which may run `flow get` there.
std::string state_around(const fs::path& folder) {
  std::error_code failed;
  fs::path absolute = fs::absolute(folder, failed);
  fs::path real = failed ? fs::path() : fs::weakly_canonical(absolute, failed);
  if (failed) return "";
  fs::path at = real;
  do {
    if (at != real && at.filename() == "scratch") return "";
    if (is_state_folder(at.string())) return at.string();
    at = at.parent_path();
  } while (at != at.root_path());
  return "";
}

/// The first part of the path `folder` that is not a folder, and the reason; "" if all are folders.
std::string obstacle(const fs::path& folder) {
  fs::path at;
  for (const fs::path& name : folder) {
    at /= name;
    std::string broken = broken_link(at.string());
    if (!broken.empty()) return fmt::format("`{}` is {}", at.string(), broken);
    struct stat info {};
    if (::stat(at.c_str(), &info) != 0) return "";
    if (!S_ISDIR(info.st_mode)) return fmt::format("`{}` is not a folder", at.string());
  }
  return "";
}

class Copier {
 public:
  Copier(const Blobs& blobs, fs::path directory, const std::vector<std::string>& folders)
      : blobs_(blobs), directory_(std::move(directory)), folders_(folders) {}

  void copy(const Value& value, const std::string& name) {
    if (value.kind() == Value::Kind::file) return copy_file(value.as_file());
    if (value.kind() == Value::Kind::tensor) return copy_tensor(value.as_tensor(), name);
    if (value.kind() != Value::Kind::table) return;
    int64_t index = 0;
    for (const Value& item : value.as_table().list)
      copy(item, fmt::format("{}{}{}", name, name.empty() ? "" : ".", ++index));
    for (const auto& [key, field] : value.as_table().fields) {
      std::string label = key.kind() == Value::Kind::string ? key.as_string() : to_json(key);
      copy(field, name.empty() ? label : name + "." + label);
    }
  }

  /// The JSON of a file has its path below the target.
  void write_json(const Value& value) {
    write(place("", "result.json"), {to_json(value, 2, file_paths_), "\n"});
  }

  std::vector<std::string> written;

 private:
  /// A file of a folder is named by its path in it (flow.list), and keeps it.
  fs::path place_below(const std::string& folder, const std::string& name) {
    fs::path path = fs::path(name).lexically_normal();
    bool is_inner = path.has_parent_path() && path.is_relative() && *path.begin() != ".." &&
                    name.find('\0') == std::string::npos;
    if (!is_inner) return place(folder, name);
    return place((fs::path(folder) / path.parent_path()).string(), path.filename().string());
  }

  fs::path place(const std::string& folder, std::string name) {
    // A name from a result is data. It never leads out of the folder.
    for (char& c : name) {
      if (c == '/' || c == '\0') c = '_';
    }
    if (name.empty() || name == "." || name == "..") name = "unnamed";
    constexpr size_t kEndMax = 64;
    std::string stem = fs::path(name).stem().string(), end = fs::path(name).extension().string();
    if (end.size() > kEndMax) stem += std::exchange(end, "");
    fs::path below = folder.empty() ? directory_ : directory_ / folder;
    fs::path path = below / fitting_name(stem, end);
    for (int n = 2; !taken_.insert(path.string()).second; n++)
      path = below / fitting_name(stem, fmt::format("-{}{}", n, end));
    return path;
  }

  void write(const fs::path& path, const std::vector<std::string_view>& pieces) {
    NewFile file(path, false);
    for (std::string_view piece : pieces) file.write(piece);
    file.keep();
    written.push_back(path.string());
  }

  /// Creates `folder` inside the target. No symbolic link may lead out of the target, but the
  /// target itself may be a link.
  void make_folder(const fs::path& folder) {
    fs::path at = directory_;
    for (const fs::path& name : folder.lexically_relative(directory_)) {
      at /= name;
      if (fs::is_symlink(at) && !lies_inside(directory_.string(), (at / name).string()))
        throw Failed(environment_error(
            fmt::format("`{}` is a symbolic link, which leads out of the target `{}`: remove it, "
                        "or name another folder",
                        at.string(), directory_.string())));
    }
    std::error_code ignored;
    if (fs::exists(folder, ignored) && !fs::is_directory(folder, ignored))
      throw Failed(environment_error(
          fmt::format("`{}` is not a folder, and the result has a folder of this name: remove it, "
                      "or name another target",
                      folder.string())));
    fs::create_directories(folder);
    if (cleaned_.insert(folder.string()).second) remove_leftovers(folder);
  }

  void put(const Digest& digest, const std::string& origin, bool executable, const fs::path& path) {
    make_folder(path.parent_path());
    NewFile file(path, executable);
    std::error_code ignored;
    std::string object = blobs_.path_of(digest);
    if (fs::exists(object, ignored)) {
      if (copy_bytes(object, file) != digest)
        throw Failed(environment_error(
            fmt::format("the blob {} in the state is damaged: its bytes have another digest (`{}`)",
                        digest.hex(), object)));
    } else if (!origin.empty()) {
      if (copy_bytes(origin, file) != digest)
        throw Failed(environment_error(fmt::format("`{}` changed since the run read it", origin)));
    } else {
      file.write(value_or_throw(blobs_.get(digest)));
    }
    file.keep();
    written.push_back(path.string());
  }

  void copy_file(const File& file) {
    size_t index = file_paths_.size();
    std::string folder = index < folders_.size() ? folders_[index] : "";
    fs::path path = place_below(folder, file.name);
    file_paths_.push_back(path.lexically_relative(directory_).string());
    if (!file.is_folder) return put(file.digest, file.origin, file.executable, path);
    if (file.entries.empty()) {
      make_folder(path);
      written.push_back(path.string());
    }
    for (const File::Entry& entry : file.entries) {
      fs::path relative = fs::path(entry.path).lexically_normal();
      if (relative.is_absolute() || *relative.begin() == "..")
        throw Failed(environment_error(
            fmt::format("the folder `{}` has the unsafe path `{}`", file.name, entry.path)));
      put(entry.digest, file.origin.empty() ? "" : (fs::path(file.origin) / relative).string(),
          entry.executable, path / relative);
    }
  }

  void copy_tensor(const Tensor& tensor, const std::string& name) {
    std::string bytes = value_or_throw(blobs_.get(tensor.digest));
    static const std::map<DType, const char*> codes = {
        {DType::f32, "<f4"}, {DType::f16, "<f2"}, {DType::f64, "<f8"},     {DType::i64, "<i8"},
        {DType::i32, "<i4"}, {DType::u8, "|u1"},  {DType::boolean, "|b1"}, {DType::bf16, "<f4"}};
    // NumPy has no bfloat16. float32 represents the same numbers.
    if (tensor.dtype == DType::bf16) bytes = widened_bf16(bytes);
    std::string shape;
    for (int64_t extent : tensor.shape) shape += fmt::format("{},", extent);
    std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                     codes.at(tensor.dtype), shape);
    while ((10 + header.size() + 1) % 64 != 0) header += ' ';
    header += '\n';
    std::string out("\x93NUMPY\x01\x00", 8);
    out += static_cast<char>(header.size() & 0xff);
    out += static_cast<char>(header.size() >> 8);
    write(place("", (name.empty() ? std::string("tensor") : name) + ".npy"), {out, header, bytes});
  }

  const Blobs& blobs_;
  fs::path directory_;
  const std::vector<std::string>& folders_;
  std::vector<std::string> file_paths_;  // of the files so far
  std::set<std::string> taken_;          // including the paths of folders
  std::set<std::string> cleaned_;        // folders in which remove_leftovers() has run
};

}  // namespace

void check_target(const std::string& directory) {
  if (is_remote_url(directory)) return check_upload_target(directory);
  std::string what = obstacle(directory);
  std::string state = what.empty() ? state_around(directory) : "";
  if (!state.empty())
    what = fmt::format("it is in the state `{}`, which only flow may change", state);
  if (what.empty()) return;
  throw Failed(user_error(fmt::format(
      "the result can't be copied into `{}`: {}. Name another folder", directory, what)));
}

void make_target(const std::string& directory) {
  check_target(directory);
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (!failed) return;
  throw Failed(environment_error(fmt::format(
      "cannot create the folder `{}` for the result: {}. Name a folder that you may write "
      "to, with -o or --out",
      directory, failed.message())));
}

std::vector<std::string> export_result(const Blobs& blobs, const Value& value,
                                       const std::string& name, const std::string& directory,
                                       const std::vector<std::string>& folders) {
  try {
    make_target(directory);
    remove_leftovers(directory);
    Copier copier(blobs, directory, folders);
    copier.copy(value, name);
    if (value.kind() != Value::Kind::file && value.kind() != Value::Kind::tensor)
      copier.write_json(value);
    return copier.written;
  } catch (const fs::filesystem_error& error) {
    throw Failed(environment_error(fmt::format(
        "cannot write `{}`: {}", error.path1().empty() ? directory : error.path1().string(),
        error.code().message())));
  }
}

}  // namespace flow
