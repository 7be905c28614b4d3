#include "engine/base/cuda_libraries.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kOff = "off";

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// By names, in which numbers count as numbers: python3.9 is before python3.11.
bool is_newer(const fs::path& a, const fs::path& b) {
  auto numbers = [](const fs::path& path) {
    std::vector<int> all;
    std::string name = path.filename().string();
    for (size_t i = 0; i < name.size(); i++) {
      if (std::isdigit(static_cast<unsigned char>(name[i])) == 0) continue;
      all.push_back(std::atoi(name.c_str() + i));
      while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0) i++;
    }
    return all;
  };
  std::vector<int> first = numbers(a), second = numbers(b);
  return first != second ? first > second : a < b;
}

/// The entries of a folder whose name starts with this, the newest version first.
std::vector<fs::path> entries(const fs::path& folder, std::string_view start = "") {
  std::vector<fs::path> found;
  std::error_code failed;
  for (fs::directory_iterator each(folder, failed), end; !failed && each != end;
       each.increment(failed))
    if (each->path().filename().string().starts_with(start)) found.push_back(each->path());
  std::sort(found.begin(), found.end(), is_newer);
  return found;
}

/// The existing folders of all places, in the order of the search.
class CudaFolders {
 public:
  explicit CudaFolders(const CudaSearch& search) {
    for (const std::string& home : {search.cuda_home, search.cuda_path}) add_toolkit(home);
    add_python(search.virtual_env);
    add_toolkit(search.conda_prefix);
    add_python(search.conda_prefix);
    add_python_in(search.path);
    if (!search.home.empty()) add_python(fs::path(search.home) / ".local");
    add(search.driver_folder, libraries);
    fs::path root = search.root;
    add_toolkit(root / "usr/local/cuda");
    for (const fs::path& each : entries(root / "usr/local", "cuda-")) add_toolkit(each);
    add_toolkit(root / "opt/cuda");
  }

  std::vector<std::string> libraries, headers;

 private:
  static void add(const fs::path& folder, std::vector<std::string>& to) {
    std::error_code failed;
    std::string path = folder.empty() ? "" : fs::canonical(folder, failed).string();
    if (path.empty() || failed || !fs::is_directory(path, failed)) return;
    if (std::find(to.begin(), to.end(), path) == to.end()) to.push_back(path);
  }

  void add_root(const fs::path& root) {
    add(root / "lib64", libraries);
    add(root / "lib", libraries);
    add(root / "include", headers);
  }

  void add_toolkit(const fs::path& toolkit) {
    if (toolkit.empty()) return;
    add_root(toolkit);
    for (const fs::path& target : entries(toolkit / "targets")) add_root(target);
  }

  /// The packages nvidia-* of pip below `prefix`, of this Python.
  void add_python(const fs::path& prefix, std::string_view version = "python3") {
    if (prefix.empty()) return;
    for (const char* lib : {"lib", "lib64", "local/lib"})
      for (const fs::path& python : entries(prefix / lib, version))
        for (const char* packages : {"site-packages", "dist-packages"})
          for (const fs::path& each : entries(python / packages / "nvidia")) add_root(each);
  }

  /// The packages of the first python3 there that has a library; a shim of pyenv has none.
  void add_python_in(std::string_view path) {
    while (!path.empty()) {
      size_t end = std::min(path.find(':'), path.size());
      fs::path python = fs::path(path.substr(0, end)) / "python3";
      path.remove_prefix(std::min(end + 1, path.size()));
      std::error_code failed;
      if (python.is_relative() || !fs::exists(python, failed)) continue;
      // In a virtual environment it is a link to the system's, whose name has the version.
      std::string name = fs::canonical(python, failed).filename().string();
      if (!name.starts_with("python3.")) name = "python3";
      fs::path prefix = python.parent_path().parent_path();
      if (!entries(prefix / "lib", name).empty()) return add_python(prefix, name);
    }
  }
};

std::string without_links(const std::string& path) {
  std::error_code failed;
  fs::path file = fs::canonical(path, failed);
  return failed ? path : file.string();
}

std::string path_of(void* library) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return without_links(map->l_name);
}

/// Opens a file, or a name in the system's search path.
bool open(const std::string& file, LoadedCudaLibrary& out) {
  out.handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (out.handle == nullptr) return false;
  out.path = path_of(out.handle);
  return true;
}

}  // namespace

CudaSearch CudaSearch::of_process() {
  CudaSearch search;
  search.cuda_home = variable("CUDA_HOME");
  search.cuda_path = variable("CUDA_PATH");
  search.conda_prefix = variable("CONDA_PREFIX");
  search.virtual_env = variable("VIRTUAL_ENV");
  search.path = variable("PATH");
  search.home = variable("HOME");
  if (void* driver = ::dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL); driver != nullptr)
    search.driver_folder = fs::path(path_of(driver)).parent_path().string();
  return search;
}

std::vector<std::string> cuda_library_folders(const CudaSearch& search) {
  return CudaFolders(search).libraries;
}

std::vector<std::string> cuda_header_folders(const CudaSearch& search) {
  return CudaFolders(search).headers;
}

LoadedCudaLibrary load_cuda_library(const CudaLibraryName& name, const CudaSearch& search) {
  LoadedCudaLibrary out;
  std::string named = variable(name.variable);
  out.is_off = named == kOff;
  out.is_named = !named.empty() && !out.is_off;
  if (out.is_off) {
    out.problem = fmt::format("disabled by {}", name.variable);
    return out;
  }
  if (out.is_named) {
    if (!open(named, out)) out.problem = ::dlerror();
    return out;
  }
  std::vector<std::string> folders = cuda_library_folders(search);
  std::string broken;
  for (const std::string& file : name.files) {
    if (open(file, out)) return out;
    for (const std::string& folder : folders) {
      std::string path = folder + "/" + file;
      std::error_code failed;
      if (!fs::exists(path, failed)) continue;
      if (open(path, out)) return out;
      if (broken.empty()) broken = ::dlerror();
    }
  }
  if (!broken.empty()) {
    out.problem = fmt::format("it cannot be loaded: {}", broken);
    return out;
  }
  out.problem = fmt::format("no {} in the system's search path", fmt::join(name.files, " or "));
  if (!folders.empty()) out.problem += fmt::format(", nor in {}", fmt::join(folders, ", "));
  return out;
}

LoadedCudaLibrary load_cuda_library(const CudaLibraryName& name) {
  return load_cuda_library(name, CudaSearch::of_process());
}

}  // namespace flow
