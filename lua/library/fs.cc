// flow.fs: files and folders, in tasks only; and paths, which are plain text.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "lua/state/arguments.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kReadMax = uint64_t{16} << 30;

std::string path_in_task(lua_State* L, int index, const char* function) {
  std::string path = check_path(L, index, function);
  require_task(L, function);
  return path;
}

void check(lua_State* L, const std::error_code& error, const char* function,
           const std::string& path) {
  if (error) raise(L, fmt::format("{}: {}: {}", function, path, error.message()));
}

int read(lua_State* L) {  // the content unchanged, also of a gzip file
  auto content = read_file(path_in_task(L, 1, "flow.fs.read"), kReadMax);
  if (!content.ok()) raise(L, "flow.fs.read: " + content.error().message);
  push_text_value(L, *content);
  return 1;
}

int write(lua_State* L) {
  std::string path = path_in_task(L, 1, "flow.fs.write");
  write_output(L, path, "flow.fs.write", "wb", check_text_argument(L, 2, "flow.fs.write"));
  return 0;
}

int append(lua_State* L) {
  std::string path = path_in_task(L, 1, "flow.fs.append");
  write_output(L, path, "flow.fs.append", "ab", check_text_argument(L, 2, "flow.fs.append"));
  return 0;
}

int exists(lua_State* L) {
  std::error_code error;
  lua_pushboolean(L, fs::exists(path_in_task(L, 1, "flow.fs.exists"), error));
  return 1;
}

int is_dir(lua_State* L) {
  std::error_code error;
  lua_pushboolean(L, fs::is_directory(path_in_task(L, 1, "flow.fs.is_dir"), error));
  return 1;
}

int size(lua_State* L) {
  std::string path = path_in_task(L, 1, "flow.fs.size");
  std::error_code error;
  auto bytes = fs::file_size(path, error);
  check(L, error, "flow.fs.size", path);
  lua_pushinteger(L, static_cast<lua_Integer>(bytes));
  return 1;
}

int list(lua_State* L) {  // names in a folder, sorted
  std::string path = path_in_task(L, 1, "flow.fs.list");
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  check(L, error, "flow.fs.list", path);
  std::sort(names.begin(), names.end());
  lua_createtable(L, static_cast<int>(std::min<size_t>(names.size(), 1u << 24)), 0);
  for (size_t i = 0; i < names.size(); i++) {
    push_text_value(L, names[i]);
    lua_rawseti(L, -2, static_cast<lua_Integer>(i) + 1);
  }
  return 1;
}

int mkdir(lua_State* L) {  // with its parents
  std::string path = path_in_task(L, 1, "flow.fs.mkdir");
  std::error_code error;
  fs::create_directories(path, error);
  check(L, error, "flow.fs.mkdir", path);
  return 0;
}

int remove(lua_State* L) {  // a file, or a folder with its content; true if it existed
  std::string path = path_in_task(L, 1, "flow.fs.remove");
  std::error_code error;
  auto removed = fs::remove_all(path, error);
  check(L, error, "flow.fs.remove", path);
  lua_pushboolean(L, removed > 0);
  return 1;
}

int copy(lua_State* L) {
  std::string from = path_in_task(L, 1, "flow.fs.copy"), to = check_path(L, 2, "flow.fs.copy");
  std::error_code error;
  std::string source = fs::weakly_canonical(from, error) / "";
  std::string target = fs::weakly_canonical(to, error) / "";
  if (target.starts_with(source))
    raise(L, fmt::format(
                 "flow.fs.copy: {} to {}: {}", from, to,
                 source == target ? "they are the same" : "a folder cannot be copied into itself"));
  error.clear();
  fs::copy(from, to, fs::copy_options::overwrite_existing | fs::copy_options::recursive, error);
  check(L, error, "flow.fs.copy", from + " to " + to);
  return 0;
}

int rename(lua_State* L) {
  std::string from = path_in_task(L, 1, "flow.fs.rename"), to = check_path(L, 2, "flow.fs.rename");
  std::error_code error;
  fs::rename(from, to, error);
  check(L, error, "flow.fs.rename", from + " to " + to);
  return 0;
}

// ---- paths

int join(lua_State* L) {  // join("a", "b.txt"): a later absolute path replaces the earlier ones
  fs::path path;
  for (int i = 1; i <= lua_gettop(L); i++) path /= check_path(L, i, "flow.fs.join");
  push_text_value(L, path.string());
  return 1;
}

int basename(lua_State* L) {  // "c.txt" of "a/b/c.txt"
  std::string path = check_path(L, 1, "flow.fs.basename");
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  size_t slash = path.rfind('/');
  push_text_value(L,
                  slash == std::string::npos || path.size() == 1 ? path : path.substr(slash + 1));
  return 1;
}

int dirname(lua_State* L) {  // "a/b" of "a/b/c.txt", "." of "c.txt"
  std::string path = check_path(L, 1, "flow.fs.dirname");
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  size_t slash = path.rfind('/');
  push_text_value(L, slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash));
  return 1;
}

int extension(lua_State* L) {  // ".gz" of "a/b.csv.gz", "" of "b"
  push_text_value(L, fs::path(check_path(L, 1, "flow.fs.extension")).extension().string());
  return 1;
}

}  // namespace

void write_output(lua_State* L, const std::string& path, const char* function, const char* mode,
                  std::string_view content) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr)
    raise(L, fmt::format("{}: cannot write {}: {}", function, path, std::strerror(errno)));
  bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  int error = errno;
  if (std::fclose(file) != 0 && written) {
    written = false;
    error = errno;
  }
  if (!written)
    raise(L, fmt::format("{}: cannot write {}: {}", function, path, std::strerror(error)));
}

const luaL_Reg kFsFunctions[] = {
    {"read", read},         {"write", write},     {"append", append},       {"exists", exists},
    {"is_dir", is_dir},     {"size", size},       {"list", list},           {"mkdir", mkdir},
    {"remove", remove},     {"copy", copy},       {"rename", rename},       {"join", join},
    {"basename", basename}, {"dirname", dirname}, {"extension", extension}, {nullptr, nullptr}};

}  // namespace flow::lua
