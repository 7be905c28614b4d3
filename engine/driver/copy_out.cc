// Copying out by name. What is in a value is data: no name in it leads out of the folder.
#include "engine/driver/copy_out.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <set>

#include "engine/base/files.hpp"
#include "engine/base/folder.hpp"
#include "engine/driver/throwing.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

class Copier {
 public:
  Copier(const Blobs& blobs, fs::path directory)
      : blobs_(blobs), directory_(std::move(directory)) {}

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

  void write_json(const Value& value) {
    fs::path path = place("result.json");
    ok_or_throw(write_file_atomic(path.string(), to_json(value, 2) + "\n"));
    written.push_back(path.string());
  }

  std::vector<std::string> written;

 private:
  fs::path place(std::string name) {
    // A name from a result is data: it never leaves the folder.
    for (char& c : name) {
      if (c == '/' || c == '\0') c = '_';
    }
    if (name.empty() || name == "." || name == "..") name = "unnamed";
    fs::path path = directory_ / name;
    for (int n = 2; !taken_.insert(path.string()).second; n++) {
      path = directory_ / (fs::path(name).stem().string() + fmt::format("-{}", n) +
                           fs::path(name).extension().string());
    }
    return path;
  }

  /// Makes `folder`, which lies in ours, and which no link may lead out of. Ours may be a link.
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
    fs::create_directories(folder);
  }

  void put(const Digest& digest, const std::string& origin, bool executable, const fs::path& path) {
    make_folder(path.parent_path());
    std::error_code failed;
    fs::path object = blobs_.path_of(digest);
    fs::path temporary = path;
    temporary += ".flow-part";
    fs::remove(temporary, failed);  // it may be a link
    if (fs::exists(object, failed)) {
      fs::copy_file(object, temporary, fs::copy_options::overwrite_existing);
      if (value_or_throw(sha256_file(temporary.string())).digest != digest) {
        fs::remove(temporary, failed);
        throw Failed(environment_error(fmt::format(
            "the content {} in the state is damaged: its bytes have another digest (`{}`)",
            digest.hex(), object.string())));
      }
    } else if (!origin.empty()) {
      fs::copy_file(origin, temporary, fs::copy_options::overwrite_existing);
      Digest now = value_or_throw(sha256_file(temporary.string())).digest;
      if (now != digest) {
        fs::remove(temporary, failed);
        throw Failed(environment_error(fmt::format("`{}` changed since the run read it", origin)));
      }
    } else {
      ok_or_throw(write_file_atomic(temporary.string(), value_or_throw(blobs_.get(digest))));
    }
    fs::permissions(temporary, executable ? fs::perms(0755) : fs::perms(0644));
    fs::rename(temporary, path);
    written.push_back(path.string());
  }

  void copy_file(const File& file) {
    fs::path path = place(file.name);
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
        {DType::i32, "<i4"}, {DType::u8, "|u1"},  {DType::boolean, "|b1"}, {DType::bf16, "<u2"}};
    std::string shape;
    for (int64_t extent : tensor.shape) shape += fmt::format("{},", extent);
    std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                     codes.at(tensor.dtype), shape);
    while ((10 + header.size() + 1) % 64 != 0) header += ' ';
    header += '\n';
    std::string out("\x93NUMPY\x01\x00", 8);
    out += static_cast<char>(header.size() & 0xff);
    out += static_cast<char>(header.size() >> 8);
    fs::path path = place((name.empty() ? std::string("tensor") : name) + ".npy");
    ok_or_throw(write_file_atomic(path.string(), out + header + bytes));
    written.push_back(path.string());
  }

  const Blobs& blobs_;
  fs::path directory_;
  std::set<std::string> taken_;  // a folder's own path too
};

}  // namespace

std::vector<std::string> copy_out(const Blobs& blobs, const Value& value, const std::string& name,
                                  const std::string& directory) {
  try {
    fs::create_directories(directory);
    Copier copier(blobs, directory);
    copier.copy(value, name);
    if (value.kind() != Value::Kind::file && value.kind() != Value::Kind::tensor)
      copier.write_json(value);
    return copier.written;
  } catch (const fs::filesystem_error& error) {
    throw Failed(
        environment_error(fmt::format("cannot write into `{}`: {}", directory, error.what())));
  }
}

}  // namespace flow
