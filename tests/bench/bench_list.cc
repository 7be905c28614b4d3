// `flow ls` on ten thousand runs, as a whole process. Usage: bench_list [count]   (default 10000)
#include "engine/store/row_keys.hpp"
#include "engine/store/rows.hpp"
#include "tests/bench/bench.hpp"

using namespace flow;
using namespace flow::bench;

namespace {

void write_runs(const std::string& dir, int count) {
  auto store = open_store(dir);
  Batch batch;
  for (int i = 0; i < count; i++) {
    RunRecord record;
    record.id = fmt::format("20260101-{:06}-abcdefg", i);
    record.pipeline = "pipeline";
    record.status = "succeeded";
    record.submitted = int64_t{1'767'225'600'000} + i * 1000;
    record.finished = record.submitted + 900;
    record.counts.succeeded = 4;
    record.script = "/home/somebody/project/pipeline.lua";
    record.directory = "/home/somebody/project";
    batch.put(Family::runs, run_key(record.id), encode_run_record(record));
  }
  if (store.ok()) (void)(*store)->commit(batch);
}

double command_seconds(const std::string& command) {
  double began = seconds();
  if (std::system(command.c_str()) != 0) fmt::print("`{}` failed\n", command);
  return seconds() - began;
}

}  // namespace

int main(int argc, char** argv) {
  int count = argc > 1 ? std::atoi(argv[1]) : 10'000;
  Folder folder;
  write_runs(folder / "state", count);
  std::string flow = std::filesystem::canonical("/proc/self/exe").parent_path() / "flow";
  double version = command_seconds(flow + " --version >/dev/null");
  double listed =
      command_seconds(fmt::format("{} ls --state {} >{}", flow, folder / "state", folder / "out"));
  figure("ls_s", listed, "target_s", 0.2);
  figure("ls_s", listed, "start_of_a_process_s", version);
}
