// Durable Lua tasks: independent ones, a chain, layers, a re-run with nothing to do, and resuming.
// Usage: bench_tasks [count]   (default 100000)
#include <sys/resource.h>

#include <algorithm>
#include <vector>

#include "tests/bench/bench.hpp"

using namespace flow;
using namespace flow::bench;

namespace {

constexpr int kLayered = 5;  // runs, short ones: the middle one counts

std::string chain(int count) {
  return fmt::format(R"(local flow = require "flow"
local add = flow.task("add", function(ctx, i) return i + 1 end)
return flow.pipeline("chain", {{}}, function()
  local h = add(0)
  for i = 2, {} do h = add(h) end
  return h
end)
)",
                     count);
}

std::string layers(int depth, int width, int salt) {
  return fmt::format(R"(local flow = require "flow"
local sum = flow.task("sum", function(ctx, layer, i, a, b, c) return (a or 0) + (b or 0) + (c or 0) + i + {2} end)
return flow.pipeline("layers", {{}}, function()
  local last = {{}}
  for i = 1, {1} do last[i] = sum(1, i) end
  for layer = 2, {0} do
    local now = {{}}
    for i = 1, {1} do now[i] = sum(layer, i, last[i], last[i % {1} + 1], last[(i + 6) % {1} + 1]) end
    last = now
  end
end)
)",
                     depth, width, salt);
}

}  // namespace

int main(int argc, char** argv) {
  int count = argc > 1 ? std::atoi(argv[1]) : 100'000;
  Folder folder;
  write_text(folder / "independent.lua", independent(count));
  write_text(folder / "chain.lua", chain(count / 10));
  write_text(folder / "warm.lua", layers(100, count / 1000, 0));
  double independent_task = 0;
  {
    Engine engine({.state = folder / "state"});
    double took = run_seconds(engine, folder / "independent.lua");
    independent_task = took / count;
    figure("independent_task_us", independent_task * 1e6, "target_us", 40);
    took = run_seconds(engine, folder / "independent.lua");
    figure("rerun_nothing_to_do_s", took, "target_s", 0.8 * count / 100'000);
  }
  {
    double began = seconds();
    Engine engine({.state = folder / "state"});
    engine.resume("last").wait();
    figure("open_and_resume_s", seconds() - began, "target_s", 2.0);
  }
  {
    Engine engine({.state = folder / "chain-state"});
    run_seconds(engine, folder / "warm.lua");
    SyncedWrites writes(folder / "floor");
    double took = run_seconds(engine, folder / "chain.lua");
    double floor = writes.mean_seconds();
    figure("chain_step_us", took / (count / 10) * 1e6, "synced_write_us", floor * 1e6);
    figure("store_write_us", store_write_seconds(folder / "written") * 1e6, "synced_write_us",
           floor * 1e6);
    std::vector<double> layered;
    for (int salt = 1; salt <= kLayered; salt++) {  // so that nothing of one is cached
      write_text(folder / "layers.lua", layers(100, count / 1000, salt));
      layered.push_back(run_seconds(engine, folder / "layers.lua"));
    }
    std::nth_element(layered.begin(), layered.begin() + kLayered / 2, layered.end());
    double cost = independent_task * count / 10 + 2 * 100 * writes.mean_seconds();
    figure("layers_s", layered[kLayered / 2], "independent_plus_two_writes_a_layer_s", cost);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  figure("head_peak_mib", static_cast<double>(usage.ru_maxrss) / 1024, "limit_mib", 1024);
}
