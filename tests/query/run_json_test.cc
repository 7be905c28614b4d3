// The JSON of runs, as defined in docs/reference-cli.md.
#include <catch2/catch.hpp>

#include "flow/flow.hpp"

using namespace flow;

namespace {

/// The text of a figure in the JSON of a run with one task.
std::string figure(const TaskUsage& usage, const std::string& name) {
  RunInfo info;
  info.tasks.resize(1);
  info.tasks[0].usage = usage;
  std::string json = info.json(), mark = "\"" + name + "\":";
  size_t at = json.find(mark);
  REQUIRE(at != std::string::npos);
  at += mark.size();
  return json.substr(at, json.find(',', at) - at);
}

}  // namespace

TEST_CASE("seconds of attempts show the digits that were stored") {
  TaskUsage usage;
  CHECK(figure(usage, "queue_s") == "null");
  for (const char* text : {"0", "0.001", "0.25", "100.123", "1234.567", "86400.5"}) {
    float stored = std::stof(text);
    usage.queue_s = usage.stage_s = usage.commit_s = usage.cpu_s = stored;
    for (const char* name : {"queue_s", "stage_s", "commit_s", "cpu_s"})
      CHECK(figure(usage, name) == text);
  }
  usage.gpu_s = 0.1 + 0.2;
  CHECK(figure(usage, "gpu_s") == "0.3");
  usage.gpu_s = 1234567.891;
  CHECK(figure(usage, "gpu_s") == "1234567.891");
}
