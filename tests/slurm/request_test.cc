// Requests to Slurm, word by word.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/cluster/slurm/request.hpp"

using namespace flow;
using namespace flow::slurm;

namespace {

WorkerLaunch a_launch() {
  return {"/opt/flow/bin/flow", "10.0.0.1:7117", "/home/me/my runs/.flow/secret",
          "/home/me/my runs/.flow/slurm", "0123456789ab"};
}

bool has(const CommandLine& command, const std::string& word) {
  return std::find(command.begin(), command.end(), word) != command.end();
}

}  // namespace

TEST_CASE("the worker of each node gets its resources as options") {
  WorkerLaunch launch = a_launch();
  CHECK(job_script({}, launch).find("--resource") == std::string::npos);
  launch.custom_resources = {{"fpga", 2000}, {"licence", 500}};
  CHECK(job_script({}, launch).find(" --resource fpga=2 --resource licence=0.5 \"") !=
        std::string::npos);
}

TEST_CASE("an allocation request is complete, with time to drain, and the user's words are last") {
  SlurmOptions options;
  options.time = "2h";
  options.gpus_per_node = 8;
  options.partition = "gpu";
  options.account = "us";
  options.qos = "high";
  options.constraint = "h200&ib";
  options.arguments = {"--reservation=today", "--exclude=n7"};
  CHECK(sbatch_command(options, a_launch(), 4) ==
        CommandLine{"sbatch",
                    "--parsable",
                    "--job-name=flow-0123456789ab",
                    "--nodes=4",
                    "--ntasks-per-node=1",
                    "--exclusive",
                    "--mem=0",
                    "--no-requeue",
                    "--no-kill",
                    "--open-mode=append",
                    "--signal=B:USR2@120",
                    "--output=/home/me/my runs/.flow/slurm/%j.log",
                    "--time=0-02:00:00",
                    "--gpus-per-node=8",
                    "--partition=gpu",
                    "--account=us",
                    "--qos=high",
                    "--constraint=h200&ib",
                    "--reservation=today",
                    "--exclude=n7",
                    "/home/me/my runs/.flow/slurm/job.sh"});
  std::string typed = text_of(sbatch_command(options, a_launch(), 4));
  CHECK(typed.find(" --constraint='h200&ib' ") != std::string::npos);
  CHECK(typed.find(" --time=0-02:00:00 ") != std::string::npos);

  CommandLine least = sbatch_command({}, a_launch(), 1);
  CHECK(least.size() == 13);
  CHECK(has(least, "--nodes=1"));
  CHECK(srun_command(a_launch(), "17", "2").at(1) == "--jobid=17");
  CHECK(squeue_command(a_launch()).at(3) == "--name=flow-0123456789ab");
  CHECK(scancel_command({3, 4}) == CommandLine{"scancel", "3", "4"});
}

TEST_CASE("a script's secret is a file, and its words are quoted") {
  std::string script = job_script({}, a_launch());
  CHECK(script.starts_with("#!/bin/bash\n"));
  CHECK(script.find("--secret-file '/home/me/my runs/.flow/secret'") != std::string::npos);
  CHECK(script.find("--join 10.0.0.1:7117") != std::string::npos);
  CHECK(script.find("--drain 110s --head-timeout 30s") != std::string::npos);
  CHECK(script.find("bash '/home/me/my runs/.flow/slurm/job.sh' \"$@\"") != std::string::npos);
}

TEST_CASE(
    "a time limit is in flow's or Slurm's format, and a short one leaves less time to drain") {
  auto time = [](const char* text) {
    auto result = slurm_time(text);
    return result.ok() ? *result : "";
  };
  CHECK(time("2h") == "0-02:00:00");
  CHECK(time("36h") == "1-12:00:00");
  CHECK(time("90s") == "0-00:01:30");
  CHECK(time("90") == "90");
  CHECK(time("1-12") == "1-12");
  CHECK(time("2:30:00") == "2:30:00");
  for (const char* wrong : {"", "soon", "0", "0s", "-1", "2 h later", ":"})
    CHECK(time(wrong) == "");

  auto lead = [](const char* text) {
    SlurmOptions options;
    options.time = text;
    return lead_seconds(options);
  };
  CHECK(lead("") == 120);
  CHECK(lead("8m") == 120);
  CHECK(lead("4m") == 60);
  CHECK(lead("4:00") == 60);
  CHECK(lead("1") == 15);
  CHECK(lead("1-0") == 120);
  CHECK(lead("0:08:00") == 120);
}

TEST_CASE("an invalid request is rejected before Slurm is asked") {
  auto is_ok = [](int32_t nodes, int32_t min, int32_t max, const char* time = "") {
    SlurmOptions options;
    options.nodes = nodes;
    options.nodes_min = min;
    options.nodes_max = max;
    options.time = time;
    return check(options).ok();
  };
  CHECK(is_ok(1, 0, 0));
  CHECK(is_ok(0, 0, 8));
  CHECK(is_ok(4'000, 0, 0));
  CHECK(is_ok(4, 2, 8));
  CHECK_FALSE(is_ok(4'001, 0, 0));
  CHECK_FALSE(is_ok(-1, 0, 0));
  CHECK_FALSE(is_ok(0, 3, 2));
  CHECK_FALSE(is_ok(9, 2, 8));
  CHECK_FALSE(is_ok(1, 2, 8));
  CHECK_FALSE(is_ok(1, 0, 0, "soon"));
  SlurmOptions options;
  options.gpus_per_node = -1;
  CHECK_THAT(check(options).error().message, Catch::StartsWith("-1 is not a number of GPUs"));
}

namespace {

/// Runs a job's script in a folder, with a worker that ends successfully on SIGTERM.
struct JobHere {
  explicit JobHere(const std::string& argument = "") {
    path = (std::filesystem::temp_directory_path() / "flow-job-XXXXXX").string();
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    launch = {path + "/worker", "10.0.0.1:7117", path + "/secret", path, "0123456789ab"};
    // Its ninth argument is its folder.
    write("worker",
          "#!/bin/bash\ntrap 'sleep 0.2; exit 0' TERM\nmkdir -p \"$9\"\n: >\"$9/started\"\n"
          "while true; do sleep 0.05; done\n");
    write("srun", "#!/bin/bash\n: >" + path + "/stepped\nsleep 0.3\nexit 5\n");
    write("job.sh", job_script({}, launch));
    dir = fmt::format("{}/flow-worker-{}-0123456789ab-n1", path, ::getuid());
    job = ::fork();
    if (job != 0) return;
    ::setpgid(0, 0);
    ::setenv("PATH", (path + ":" + ::getenv("PATH")).c_str(), 1);
    ::setenv("FLOW_WORKER_DIR", path.c_str(), 1);
    ::setenv("SLURMD_NODENAME", "n1", 1);
    ::setenv("SLURM_CPUS_ON_NODE", "2", 1);
    ::setenv("SLURM_JOB_ID", "17", 1);
    ::setenv("SLURM_JOB_NUM_NODES", "1", 1);
    // Simulates a busy machine: the check whether a process exists is slow. Bash reads this
    // variable as a function.
    ::setenv("BASH_FUNC_kill%%", "() { sleep 1; builtin kill \"$@\"; }", 1);
    std::string script = path + "/job.sh";
    ::execlp("bash", "bash", script.c_str(), argument.empty() ? nullptr : argument.c_str(),
             nullptr);
    ::_exit(127);
  }
  ~JobHere() {
    if (job > 0) ::kill(-job, SIGKILL);
    if (!is_waited_for) ::waitpid(job, nullptr, 0);
    std::filesystem::remove_all(path);
  }
  int end() {
    int status = -1;
    REQUIRE(::waitpid(job, &status, 0) == job);
    is_waited_for = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void write(const char* name, const std::string& text) const {
    std::ofstream(path + "/" + name) << text;
    std::filesystem::permissions(path + "/" + name, std::filesystem::perms::owner_all);
  }
  bool is_there(const std::string& what) const { return std::filesystem::exists(dir + what); }

  std::string path, dir;
  WorkerLaunch launch;
  pid_t job = -1;
  bool is_waited_for = false;
};

template <typename Condition>
bool comes_true(Condition condition) {
  for (int i = 0; i < 1'000; i++) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

}  // namespace

// Slurm signals both at the end of the job.
TEST_CASE(
    "a worker that ends successfully is reported so and leaves no folder, though its job was "
    "ended") {
  JobHere here("worker");
  REQUIRE(comes_true([&] { return here.is_there("/started"); }));
  pid_t worker = 0;
  std::ifstream(here.dir + ".pid") >> worker;
  REQUIRE(worker > 0);
  ::kill(here.job, SIGTERM);
  ::kill(worker, SIGTERM);
  CHECK(here.end() == 0);
  CHECK_FALSE(here.is_there(""));
  CHECK_FALSE(here.is_there(".pid"));
}

TEST_CASE("a job ends with the exit code of its step, even if it receives a signal at its end") {
  JobHere here;
  REQUIRE(comes_true([&] { return std::filesystem::exists(here.path + "/stepped"); }));
  ::kill(here.job, SIGTERM);
  CHECK(here.end() == 5);
}
