// A folder for one test, removed by the destructor.
#pragma once
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

struct TempFolder {
  std::filesystem::path path;
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "flow-store-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string state() const { return (path / "state").string(); }
};

/// The newest write-ahead log of a state.
inline std::filesystem::path newest_log(const std::string& state) {
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(state + "/db")) {
    if (entry.path().extension() == ".log" && entry.path() > newest) newest = entry.path();
  }
  REQUIRE_FALSE(newest.empty());
  return newest;
}
