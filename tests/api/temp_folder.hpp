// A temporary folder with a state, for tests that embed the engine.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>

#include "flow/flow.hpp"

namespace flow::test {

/// Removed with its contents by the destructor.
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
