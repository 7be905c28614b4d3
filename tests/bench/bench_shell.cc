// Shell tasks of /bin/true compared with a C loop that does the same for each, and with ninja if
// installed. Usage: bench_shell [count]   (default 10000)
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/bench/bench.hpp"

using namespace flow;
using namespace flow::bench;

namespace {

extern "C" char** environ;

/// One task of the floor: scratch folder, output pipes, process group, wait.
void run_once(const std::string& dir) {
  std::filesystem::create_directory(dir);
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  posix_spawn_file_actions_addchdir_np(&actions, dir.c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  char program[] = "/bin/true";
  char* argv[] = {program, nullptr};
  posix_spawn(&pid, program, &actions, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  char buffer[4096];
  while (read(out[0], buffer, sizeof buffer) > 0) {
  }
  while (read(err[0], buffer, sizeof buffer) > 0) {
  }
  close(out[0]);
  close(err[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  std::filesystem::remove(dir);
}

double floor_seconds(const Folder& folder, int count) {
  std::atomic<int> next{0};
  auto store = open_store(folder / "floor");
  if (!store.ok()) return 0;
  double began = seconds();
  std::vector<std::thread> slots;
  for (int slot = 0; slot < 2; slot++) {
    slots.emplace_back([&] {
      for (int i = next++; i < count; i = next++) {
        run_once(folder / fmt::format("scratch-{}", i));
        Batch batch;
        batch.put(Family::kv, fmt::format("done/{}", i), std::string(200, 'x'));
        if (!(*store)->commit(batch).ok()) return;  // RocksDB groups the commits of the two slots
      }
    });
  }
  for (std::thread& slot : slots) slot.join();
  return seconds() - began;
}

double ninja_seconds(const Folder& folder, int count) {
  std::string text = "rule t\n  command = /bin/true $out\n";
  for (int i = 0; i < count; i++) text += fmt::format("build t{}: t\n", i);
  write_text(folder / "build.ninja", text);
  double began = seconds();
  std::string command = "ninja -C '" + folder.path() + "' -j2 >/dev/null 2>&1";
  return std::system(command.c_str()) == 0 ? seconds() - began : 0;
}

}  // namespace

int main(int argc, char** argv) {
  int count = argc > 1 ? std::atoi(argv[1]) : 10'000;
  Folder folder;
  write_text(folder / "shell.lua", fmt::format(R"(local flow = require "flow"
local run = flow.shell("run", {{ args = {{ "i" }}, command = "/bin/true" }})
return flow.pipeline("shell", {{}}, function()
  for i = 1, {} do run(i) end
end)
)",
                                               count));
  double floor = floor_seconds(folder, count);
  double took = 0;
  {
    Engine engine({.state = folder / "state", .jobs = 2});
    took = run_seconds(engine, folder / "shell.lua");
  }
  figure("shell_task_us", took / count * 1e6, "c_loop_us", floor / count * 1e6);
  double ninja = ninja_seconds(folder, count);
  if (ninja > 0) figure("shell_task_us", took / count * 1e6, "ninja_us", ninja / count * 1e6);
}
