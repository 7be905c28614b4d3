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
  size_t at = json.find(mark, json.find(",\"tasks\":["));
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

TEST_CASE("a run has used what is known of its tasks: sums, and the largest peak of memory") {
  RunInfo info;
  CHECK(info.json().find("\"usage\"") == std::string::npos);
  info.tasks.resize(3);
  info.tasks[0].usage = {.queue_s = 1, .cpu_s = 0.5, .peak_memory = 700, .read_bytes = 1};
  info.tasks[2].usage = {.queue_s = 2, .cpu_s = 0.25, .peak_memory = 500, .read_bytes = 20};
  CHECK(
      info.json().find(
          R"("usage":{"peak_memory":700,"cpu_s":0.75,"read_bytes":21,"written_bytes":null,)"
          R"("queue_s":3,"stage_s":null,"commit_s":null,"gpu_s":null,)"
          R"("gpu_used_s":null,"gpu_measured_s":null,"gpu_energy_j":null,"cpu_tasks":2},"tasks":[)") !=
      std::string::npos);
}
