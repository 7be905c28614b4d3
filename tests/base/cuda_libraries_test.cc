// The search for NVIDIA's libraries, in folders that look like a toolkit, conda and pip.
#include "engine/base/cuda_libraries.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/base/temporary_folder.hpp"

namespace flow {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Catch::StartsWith;

class Machine {
 public:
  Machine() : folder_(*make_temporary_folder()) {
    search.root = root();
    // A name of its own: the system has none of it.
    ::unsetenv("FLOW_TEST_LIB");
  }
  ~Machine() { ::unsetenv("FLOW_TEST_LIB"); }
  std::string root() const { return fs::canonical(*folder_).string(); }
  std::string at(const std::string& path) const { return root() + "/" + path; }
  std::string folder(const std::string& path) const {
    fs::create_directories(at(path));
    return at(path);
  }
  std::string file(const std::string& path, const std::string& text = "") const {
    fs::create_directories(fs::path(at(path)).parent_path());
    std::ofstream(at(path)) << text;
    return at(path);
  }
  /// A library that can be loaded: the test's own, under another name.
  std::string library(const std::string& path) const {
    fs::create_directories(fs::path(at(path)).parent_path());
    fs::copy_file(FLOW_TEST_LIBRARY, at(path));
    return at(path);
  }

  CudaSearch search;
  const CudaLibraryName name{"FLOW_TEST_LIB", {"libflowtest.so.13", "libflowtest.so.12"}};

 private:
  std::shared_ptr<const std::string> folder_;
};

TEST_CASE("folders are searched from the variables to the system's toolkits") {
  Machine here;
  here.search.cuda_home = here.at("toolkit");
  here.search.cuda_path = here.at("missing");
  here.search.virtual_env = here.at("venv");
  here.search.conda_prefix = here.at("conda");
  here.search.path =
      here.at("shims/bin") + ":" + here.at("python/bin") + ":" + here.at("other/bin");
  here.search.home = here.at("home");
  here.search.driver_folder = here.folder("driver");
  std::vector<std::string> expected = {
      here.folder("toolkit/lib64"),
      here.folder("toolkit/targets/x86_64-linux/lib"),
      here.folder("venv/lib/python3.12/site-packages/nvidia/cu13/lib"),
      here.folder("venv/lib/python3.12/site-packages/nvidia/cudnn/lib"),
      here.folder("conda/lib"),
      here.folder("conda/lib/python3.11/site-packages/nvidia/nccl/lib"),
      here.folder("conda/lib/python3.9/site-packages/nvidia/nccl/lib"),
      here.folder("python/lib/python3.10/site-packages/nvidia/cublas/lib"),
      here.folder("python/local/lib/python3.10/dist-packages/nvidia/cudnn/lib"),
      here.folder("home/.local/lib/python3.10/site-packages/nvidia/cudnn/lib"),
      here.search.driver_folder,
      here.folder("usr/local/cuda/targets/sbsa-linux/lib"),
      here.folder("usr/local/cuda-13.1/lib64"),
      here.folder("usr/local/cuda-9.2/lib64"),
      here.folder("opt/cuda/lib64"),
  };
  // The python3 of PATH is 3.10, so that no other's packages count.
  here.folder("python/lib/python3.12/site-packages/nvidia/cublas/lib");
  here.folder("other/lib/python3.10/site-packages/nvidia/cublas/lib");
  here.file("python/bin/python3.10");
  fs::create_symlink("python3.10", here.at("python/bin/python3"));
  here.file("other/bin/python3");
  here.file("shims/bin/python3");
  CHECK(cuda_library_folders(here.search) == expected);
  CudaSearch nothing;
  nothing.root = here.at("missing");
  CHECK(cuda_library_folders(nothing).empty());
}

TEST_CASE("the headers are beside the libraries") {
  Machine here;
  here.search.virtual_env = here.at("venv");
  here.folder("venv/lib/python3.12/site-packages/nvidia/cu13/lib");
  std::string pip = here.folder("venv/lib/python3.12/site-packages/nvidia/cu13/include");
  std::string toolkit = here.folder("usr/local/cuda/include");
  CHECK(cuda_header_folders(here.search) == std::vector<std::string>{pip, toolkit});
}

TEST_CASE("the preferred release is loaded wherever it is") {
  Machine here;
  here.search.cuda_home = here.at("old");
  here.search.virtual_env = here.at("venv");
  here.library("old/lib64/libflowtest.so.12");
  LoadedCudaLibrary found = load_cuda_library(here.name, here.search);
  REQUIRE(found.handle != nullptr);
  CHECK(found.path == here.at("old/lib64/libflowtest.so.12"));
  std::string pip = here.library("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libreal.so");
  fs::create_symlink("libreal.so", fs::path(pip).parent_path() / "libflowtest.so.13");
  found = load_cuda_library(here.name, here.search);
  CHECK(found.path == pip);
  CHECK(found.problem.empty());
}

TEST_CASE("a variable names the only file that is loaded") {
  Machine here;
  here.library("usr/local/cuda/lib64/libflowtest.so.13");
  std::string own = here.library("own.so");
  ::setenv("FLOW_TEST_LIB", own.c_str(), 1);
  LoadedCudaLibrary found = load_cuda_library(here.name, here.search);
  CHECK(found.path == own);
  CHECK(found.is_named);
  ::setenv("FLOW_TEST_LIB", "/nowhere/lib.so", 1);
  found = load_cuda_library(here.name, here.search);
  CHECK(found.handle == nullptr);
  CHECK_THAT(found.problem, StartsWith("/nowhere/lib.so: cannot open shared object file"));
  ::setenv("FLOW_TEST_LIB", "off", 1);
  found = load_cuda_library(here.name, here.search);
  CHECK(found.handle == nullptr);
  CHECK(found.is_off);
  CHECK_FALSE(found.is_named);
  CHECK(found.problem == "disabled by FLOW_TEST_LIB");
}

TEST_CASE("what was searched, or which file is broken, is told") {
  Machine here;
  std::string toolkit = here.folder("usr/local/cuda/lib64");
  CHECK(load_cuda_library(here.name, here.search).problem ==
        "no libflowtest.so.13 or libflowtest.so.12 in the system's search path, nor in " + toolkit);
  here.file("usr/local/cuda/lib64/libflowtest.so.12", "this is text");
  CHECK_THAT(load_cuda_library(here.name, here.search).problem,
             StartsWith("it cannot be loaded: " + toolkit + "/libflowtest.so.12: ") &&
                 Contains("file too short"));
}

}  // namespace
}  // namespace flow
