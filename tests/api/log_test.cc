// The engine's log, as a host program receives it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "flow/flow.hpp"
#include "tests/api/temp_folder.hpp"

using namespace flow;

TEST_CASE("a sink receives the lines of a run, and none after its engine has ended") {
  test::TempFolder temp;
  std::ofstream(temp.path / "pipeline.lua") << R"(local flow = require "flow"
local add = flow.task("add", function(ctx, a) return a + 1 end)
return flow.pipeline("sum", {}, function() return add(1) end)
)";
  std::vector<std::string> lines;
  auto count = [&](const std::string& text) { return std::ranges::count(lines, text); };
  EngineOptions options = temp.options();
  options.log.sink = [&](const EngineLogLine& line) {
    CHECK(line.time_ms > 0);
    CHECK(line.level >= LogLevel::info);
    lines.push_back(line.message + (line.detail == "succeeded" ? " succeeded" : ""));
  };
  {
    Engine engine(options);
    CHECK(engine.run((temp.path / "pipeline.lua").string()).wait().as_number() == 2);
    engine.gc(0);
  }
  for (const char* text : {"engine started", "run submitted", "run ended succeeded",
                           "snapshot written", "garbage collected", "engine stopped"}) {
    CAPTURE(text);
    CHECK(count(text) == 1);
  }
  size_t written = lines.size();
  options.log.sink = nullptr;
  Engine silent(options);
  CHECK(lines.size() == written);
}
