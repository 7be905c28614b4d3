// How fast a head dispatches tasks to simulated workers, each with a UCX session, a spool and
// messages like a real worker's; they finish their orders at once. They are another process on the
// same cores, so the head's own CPU time is a separate figure. For comparison, the same tasks run
// on the head's own machine. Usage: bench_head [workers [tasks]]   (default 100, 50000)
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/api/cluster_transport.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/cluster/worker/worker_process.hpp"
#include "flow/value.hpp"
#include "tests/bench/bench.hpp"

using namespace flow;
using namespace flow::bench;

namespace {

constexpr double kAimPerSecond = 20'000;
constexpr int kSlots = 4;  // per worker

/// Finishes each order when it is durable.
class InstantWorker final : public Worker {
 public:
  explicit InstantWorker(OnReport on_report)
      : on_report_(std::move(on_report)), result_(encode_value(Value(int64_t{1}))) {}
  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override {
    std::vector<Report> ended;
    {
      std::lock_guard lock(mutex_);
      for (const AttemptOrder& order : orders) {
        if (commit > released_) {
          held_.emplace(commit, order.id);
        } else {
          ended.push_back(end_of(order.id));
        }
      }
    }
    if (!ended.empty()) on_report_(std::move(ended));
  }
  void release(uint64_t commit) override {
    std::vector<Report> ended;
    {
      std::lock_guard lock(mutex_);
      released_ = std::max(released_, commit);
      while (!held_.empty() && held_.begin()->first <= released_) {
        ended.push_back(end_of(held_.begin()->second));
        held_.erase(held_.begin());
      }
    }
    if (!ended.empty()) on_report_(std::move(ended));
  }
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId&, bool) override {}
  void ack_saved(const core::AttemptId&, const std::string&, bool) override {}
  void ack_logs(size_t) override {}

 private:
  Report end_of(const core::AttemptId& id) const {
    TaskFinished finished;
    finished.value = result_;
    finished.duration_us = 1;
    return {id, 0, 0, std::move(finished)};
  }

  const OnReport on_report_;
  const std::string result_;
  std::mutex mutex_;
  uint64_t released_ = 0;
  std::multimap<uint64_t, core::AttemptId> held_;
};

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(*result);
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}

struct SimulatedWorker {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<cluster::WorkerProcess> node;
};

SimulatedWorker worker_of(const std::string& head, const std::string& folder, int number) {
  std::string name = fmt::format("w{}", number), dir = folder + "/" + name;
  SimulatedWorker made;
  cluster::WorkerProcessOptions options;
  options.session =
      must(session_options(cluster::Role::worker, name, folder + "/head/secret", false));
  options.head = head;
  options.agent.worker.name = name;
  options.agent.worker.cpus_milli = kSlots * 1000;
  options.agent.worker.memory_bytes = int64_t{1} << 30;
  options.agent.spool_dir = dir + "/spool";
  options.agent.store = must(cluster::BlobCache::open(dir, 0));
  made.transport = must(cluster_transport(head, options.session));
  made.node = must(cluster::WorkerProcess::start(
      *made.transport, std::move(options),
      [](Worker::OnReport on_report) -> Result<std::unique_ptr<Worker>> {
        return std::unique_ptr<Worker>(std::make_unique<InstantWorker>(std::move(on_report)));
      }));
  return made;
}

/// Runs until its stdin ends.
int simulate(const std::string& head, const std::string& folder, int workers) {
  std::vector<SimulatedWorker> simulated;
  for (int i = 0; i < workers; i++) simulated.push_back(worker_of(head, folder, i));
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  for (SimulatedWorker& each : simulated) each.node.reset();
  return 0;
}

/// Starts a process of this program that simulates workers; it ends when the other end of the
/// descriptor is closed.
pid_t start_workers(const std::string& head, const std::string& folder, int workers, int& end) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) std::exit(1);
  pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(pipe[0], STDIN_FILENO);
    std::string count = std::to_string(workers);
    ::execl("/proc/self/exe", "bench_head", "--simulate", head.c_str(), folder.c_str(),
            count.c_str(), nullptr);
    ::_exit(1);
  }
  ::close(pipe[0]);
  end = pipe[1];
  return pid;
}

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "--simulate") == 0)
    return simulate(argv[2], argv[3], std::atoi(argv[4]));
  int workers = argc > 1 ? std::atoi(argv[1]) : 100, count = argc > 2 ? std::atoi(argv[2]) : 50'000;
  Folder folder;
  write_text(folder / "tasks.lua", independent(count));
  double alone = 0;
  {
    Engine engine({.state = folder / "alone"});
    alone = run_seconds(engine, folder / "tasks.lua");
  }
  EngineOptions options;
  options.state = folder / "head";
  options.listen = "127.0.0.1:0";
  Engine engine(options);
  int end = -1;
  pid_t simulated = start_workers(engine.address(), folder.path(), workers, end);
  auto is_up = [](const NodeInfo& node) { return node.status == "up"; };
  while (true) {
    auto nodes = engine.nodes();
    if (std::count_if(nodes.begin(), nodes.end(), is_up) >= workers) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  double cpu = cpu_seconds();
  double took = run_seconds(engine, folder / "tasks.lua");
  cpu = cpu_seconds() - cpu;
  figure("placed_tasks_per_second", count / took, "aim", kAimPerSecond);
  figure("task_us_over_workers", took / count * 1e6, "alone_us", alone / count * 1e6);
  figure("head_cpu_us_a_task", cpu / count * 1e6, "aim", 1e6 / kAimPerSecond);
  ::close(end);
  ::waitpid(simulated, nullptr, 0);
  return 0;
}
