// A folder for one test, removed at its end.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>

struct Place {
  std::filesystem::path path;
  Place() {
    std::string name = (std::filesystem::temp_directory_path() / "flow-store-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Place() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string state() const { return (path / "state").string(); }
};
