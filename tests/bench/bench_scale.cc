// The cost per task as runs grow, and the head's memory for the largest run: a cost that grew with
// the number of tasks would show as a ratio above one. Usage: bench_scale [count]   (default
// 1000000)
#include <sys/resource.h>

#include "tests/bench/bench.hpp"

using namespace flow;
using namespace flow::bench;

namespace {

double task_seconds(const Folder& folder, Engine& engine, int count) {
  std::string script = folder / fmt::format("tasks-{}.lua", count);
  write_text(script, independent(count));
  return run_seconds(engine, script, {.fresh = true}) / count;
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

}  // namespace

int main(int argc, char** argv) {
  int count = argc > 1 ? std::atoi(argv[1]) : 1'000'000;
  Folder folder;
  double largest = 0;
  {
    Engine engine({.state = folder / "large"});
    largest = task_seconds(folder, engine, count);
  }
  figure("head_peak_mib", peak_mib(), "limit_mib", 1024);
  Engine engine({.state = folder / "small"});
  (void)task_seconds(folder, engine, 1000);  // executors are warm
  double smallest = task_seconds(folder, engine, count / 100);
  std::string floor = fmt::format("task_us_of_{}", count / 100);
  figure(fmt::format("task_us_of_{}", count / 10), task_seconds(folder, engine, count / 10) * 1e6,
         floor, smallest * 1e6);
  figure(fmt::format("task_us_of_{}", count), largest * 1e6, floor, smallest * 1e6);
}
