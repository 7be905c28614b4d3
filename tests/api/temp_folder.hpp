// A folder of a test's own with a state in it, for tests that embed the engine.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>

#include "flow/flow.hpp"

namespace flow::test {

/// Removed with all that is in it.
struct TempFolder {
  std::filesystem::path path;
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "flow-test-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  EngineOptions options(int32_t jobs = 2) const {
    EngineOptions options;
    options.state = (path / "state").string();
    options.jobs = jobs;
    options.working_directory = path.string();
    if (const char* executor = std::getenv("FLOW_TEST_EXECUTOR")) options.executor = executor;
    return options;
  }
};

}  // namespace flow::test
