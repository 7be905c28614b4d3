// Jobs of an earlier head, with replacements for Slurm's programs.
#include "engine/head/slurm_autoscaler.hpp"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/log/log_output.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

struct Nodes {
  Nodes() {
    std::string name = fs::temp_directory_path() / "flow-slurm-nodes-XXXXXX";
    folder = ::mkdtemp(name.data());
    launch.folder = folder + "/jobs";
    launch.head = "127.0.0.1:7";
    fs::create_directories(launch.folder);
    ::setenv("PATH", (folder + ":" + path).c_str(), 1);
    scancel("exit 0");
    program("squeue", "exit 0");
  }
  ~Nodes() {
    ::setenv("PATH", path.c_str(), 1);
    fs::remove_all(folder);
  }

  void program(const std::string& name, const std::string& script) {
    REQUIRE(write_file_atomic(folder + "/" + name, "#!/bin/sh\n" + script + "\n", 0700).ok());
  }
  void scancel(const std::string& then) {
    program("scancel", "echo \"$@\" >> " + folder + "/cancelled\n" + then);
  }
  void left(const std::string& name, const std::string& text) {
    REQUIRE(write_file_atomic(launch.folder + "/" + name, text).ok());
  }
  /// A head that requests nothing, from its start to its end.
  void pass() { REQUIRE(start(false).ok()); }
  Result<std::unique_ptr<SlurmAutoscaler>> start(bool has_work) {
    AutoscalerCallbacks user;
    user.view = [has_work] {
      slurm::ClusterView view;
      view.has_work = has_work;
      return view;
    };
    user.drain = [](const std::string&) {};
    user.note = [this](const std::string& text) { notes.push_back(text); };
    user.status = [](const std::string&) {};
    user.on_failed = [](const Error&) {};
    SlurmOptions options;
    options.nodes = 1;
    return SlurmAutoscaler::start(options, launch, "", user);
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& each : fs::directory_iterator(launch.folder))
      if (each.path().extension() == ".job") names.insert(each.path().filename());
    return names;
  }
  std::string cancelled() const {
    auto text = read_file(folder + "/cancelled");
    return text.ok() ? *text : "";
  }

  const std::string path = std::getenv("PATH");
  std::string folder;
  slurm::WorkerLaunch launch;
  std::vector<std::string> notes;
};

/// The lines of the engine's log, as text.
class Lines {
 public:
  Lines() {
    LogOptions options;
    options.sink = [this](const EngineLogLine& line) {
      std::lock_guard lock(mutex_);
      lines_.push_back(std::string(level_name(line.level)) + " " + line.message + ": " +
                       line.detail);
      changed_.notify_all();
    };
    auto opened = log::open_log(options, "");
    REQUIRE(opened.ok());
    log_ = *opened;
  }
  void wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lines_.size() >= count; });
  }
  std::vector<std::string> all() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  std::shared_ptr<void> log_;
};

using Files = std::set<std::string>;

}  // namespace

TEST_CASE("jobs of a head on another machine are cancelled, and only job files count") {
  Nodes nodes;
  nodes.left("17.job", "1 elsewhere:1");
  nodes.left("x.job", "1 elsewhere:1");
  nodes.left("18x.job", "1 elsewhere:1");
  nodes.left("0.job", "1 elsewhere:1");
  nodes.pass();
  CHECK(nodes.cancelled() == "17\n");
  CHECK(nodes.files() == Files{"0.job", "18x.job", "x.job"});
  CHECK(nodes.notes.empty());
}

TEST_CASE("a job that could not be cancelled is left for the next head") {
  Nodes nodes;
  nodes.left("17.job", "1 elsewhere:1");
  nodes.scancel("echo 'scancel: error: Unable to contact slurm controller' >&2; exit 1");
  nodes.pass();
  CHECK(nodes.files() == Files{"17.job"});
  REQUIRE(nodes.notes.size() == 1);
  CHECK_THAT(nodes.notes[0],
             Catch::Contains("scancel 17\nanswered: scancel: error: Unable to contact"));
  nodes.scancel(
      "echo 'scancel: error: Kill job error on job id 17: Invalid job id specified' >&2; exit 1");
  nodes.pass();
  CHECK(nodes.files().empty());
  CHECK(nodes.notes.size() == 1);
}

TEST_CASE("a head that ends keeps the files of jobs that it could not release") {
  Nodes nodes;
  nodes.left("17.job", "1 " + nodes.launch.head);
  nodes.scancel("exit 1");
  nodes.pass();
  CHECK(nodes.files() == Files{"17.job"});
  CHECK(nodes.notes.size() == 1);
  nodes.scancel("exit 0");
  nodes.pass();
  CHECK(nodes.files().empty());
}

TEST_CASE("each event of a job leaves one line in the log") {
  Nodes nodes;
  nodes.program("sbatch", "echo 42");
  nodes.program("squeue", "echo '42|RUNNING|None'");
  nodes.left("17.job", "1 elsewhere:1");
  Lines lines;
  {
    auto autoscaler = nodes.start(true);
    REQUIRE(autoscaler.ok());
    lines.wait_for(3);
  }
  CHECK(lines.all() == std::vector<std::string>{"info Slurm job cancelled: job 17",
                                                "info Slurm job submitted: job 42, 1 node",
                                                "info Slurm job started: job 42, 1 node",
                                                "info Slurm job cancelled: job 42, 1 node"});
}

TEST_CASE("a job that could not be cancelled leaves one line in the log") {
  Nodes nodes;
  nodes.left("17.job", "1 elsewhere:1");
  nodes.scancel("echo 'no controller' >&2; exit 1");
  Lines lines;
  nodes.pass();
  CHECK(lines.all() ==
        std::vector<std::string>{
            "warning Slurm jobs not cancelled: scancel 17\nanswered: no controller"});
}
