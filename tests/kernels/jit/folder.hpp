// A temporary folder, and the fake driver.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <iostream>
#include <string>

#include "kernels/jit/compiler.hpp"

namespace flow::jit {

struct Folder {
  std::string path = std::filesystem::temp_directory_path() / "flow-jit-XXXXXX";
  Folder() {
    if (mkdtemp(path.data()) == nullptr) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

/// Returns false and prints a line if this machine has no NVRTC; tests that compile are then
/// skipped.
inline bool has_compiler() {
  auto compiler = Compiler::get();
  if (!compiler.ok()) std::cerr << "left out: " << compiler.error().message << "\n";
  return compiler.ok();
}

}  // namespace flow::jit
