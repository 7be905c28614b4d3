// Every scenario text in this folder: events in, commands out, nothing else.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/core/scenario.hpp"

TEST_CASE("every scenario comes out as written") {
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(FLOW_SCENARIOS)) {
    if (entry.path().extension() == ".txt") paths.insert(entry.path());
  }
  REQUIRE(paths.size() > 10);
  for (const auto& path : paths) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    INFO(path.filename().string());
    CHECK(flow::core::Scenario().play(text.str()) == "");
  }
}
