// Scenarios of the pool: what is requested, requested again, and released.
#include <catch2/catch.hpp>

#include "engine/cluster/slurm/allocation_pool.hpp"

using namespace flow;
using namespace flow::slurm;

namespace {

/// A pool, and a simulated Slurm.
struct Story {
  AllocationPool pool;
  ClusterView view;
  int64_t now = 1'000'000;
  uint64_t next_job = 1;
  std::map<uint64_t, JobStatus> said;  // the last message of each

  explicit Story(const AllocationPoolOptions& options) : pool(options) { view.has_work = true; }

  /// Makes one decision and numbers the requests.
  PoolActions turn(int64_t after_ms = 0) {
    now += after_ms;
    PoolActions steps = pool.decide(view, now);
    for (int32_t nodes : steps.requests) {
      said[next_job] = {next_job, JobState::pending, "PENDING", ""};
      pool.requested(next_job++, nodes, now);
    }
    return steps;
  }
  void say(uint64_t job, JobState state, const std::string& word, const std::string& reason = "") {
    said[job] = {job, state, word, reason};
    std::vector<JobStatus> all;
    for (const auto& [number, status] : said) all.push_back(status);
    pool.polled(all, now);
  }
  void join(uint64_t job, const std::string& name) { view.nodes.push_back({name, job, true}); }
  SlurmNode& node(const std::string& name) {
    for (SlurmNode& each : view.nodes)
      if (each.name == name) return each;
    FAIL("no node " << name);
    return view.nodes.front();
  }
  void leave(const std::string& name) {
    std::erase_if(view.nodes, [&](const SlurmNode& each) { return each.name == name; });
  }
  bool was_noted(const std::string& words) {
    for (const std::string& note : pool.take_notes())
      if (note.find(words) != std::string::npos) return true;
    return false;
  }
};

AllocationPoolOptions fixed(int32_t nodes) {
  AllocationPoolOptions options;
  options.nodes = nodes;
  return options;
}

AllocationPoolOptions elastic(int32_t min, int32_t max) {
  AllocationPoolOptions options;
  options.nodes = options.min = min;
  options.max = max;
  return options;
}

/// The lines for the log since the last call, warnings with a `!`.
std::vector<std::string> lines_of(AllocationPool& pool) {
  std::vector<std::string> lines;
  for (const PoolLogLine& line : pool.take_log_lines())
    lines.push_back((line.level == LogLevel::warning ? "! " : "") + line.message + ": " +
                    line.detail);
  return lines;
}

using SlurmNodes = std::vector<int32_t>;
using Lines = std::vector<std::string>;
using Jobs = std::vector<uint64_t>;

}  // namespace

TEST_CASE("nodes are requested once when there is work") {
  Story story(fixed(4));
  story.view.has_work = false;
  CHECK(story.turn().requests.empty());
  story.view.has_work = true;
  CHECK(story.turn().requests == SlurmNodes{4});
  CHECK(story.turn(60'000).requests.empty());
  story.say(1, JobState::pending, "PENDING", "Resources");
  CHECK(story.turn(3'600'000).requests.empty());
  CHECK(story.pool.status() == "the allocation 1 of 4 nodes is PENDING (Resources)");
  story.say(1, JobState::running, "RUNNING");
  for (const char* name : {"n1", "n2", "n3", "n4"}) story.join(1, name);
  CHECK(story.turn().requests.empty());
  CHECK(story.pool.take_notes().empty());
}

TEST_CASE("a draining allocation is replaced before it ends, and its end is not a failure") {
  Story story(fixed(2));
  story.turn();
  story.say(1, JobState::running, "RUNNING");
  story.join(1, "n1");
  story.join(1, "n2");
  story.turn(600'000);
  story.node("n1").is_draining = story.node("n2").is_draining = true;
  CHECK(story.turn().requests == SlurmNodes{2});
  CHECK(story.turn().requests.empty());
  story.leave("n1");
  story.leave("n2");
  CHECK(story.turn().requests.empty());
  story.say(1, JobState::timed_out, "TIMEOUT");
  CHECK(story.was_noted("TIMEOUT"));
  CHECK(story.turn().requests.empty());
  CHECK(story.pool.jobs() == Jobs{2});
}

TEST_CASE("a lost node of several is requested alone") {
  Story story(fixed(3));
  story.turn();
  story.say(1, JobState::running, "RUNNING");
  for (const char* name : {"n1", "n2", "n3"}) story.join(1, name);
  story.turn();
  story.node("n2").is_up = false;
  story.now += kJoinMs;
  story.say(1, JobState::running, "RUNNING");
  CHECK(story.turn().requests == SlurmNodes{1});
}

TEST_CASE("a cancelled allocation is requested again with growing delays and a limit") {
  Story story(fixed(1));
  int64_t pause = kBackoffFirstMs;
  for (uint32_t failure = 1; failure <= kFailuresMax; failure++) {
    CHECK(story.turn().requests == SlurmNodes{1});
    story.say(story.next_job - 1, JobState::cancelled, "CANCELLED");
    CHECK(story.was_noted("CANCELLED"));
    CHECK(story.turn(pause - 1).requests.empty());
    CHECK(!story.pool.final_failure() == (failure < kFailuresMax));
    story.now++;
    pause = std::min(2 * pause, kBackoffLastMs);
  }
  CHECK(story.turn(86'400'000).requests.empty());
  CHECK(story.pool.final_failure()->find("CANCELLED") != std::string::npos);
}

TEST_CASE("an allocation that did its work resets the count of failures") {
  Story story(fixed(1));
  story.turn();
  story.say(1, JobState::node_fail, "NODE_FAIL");
  CHECK(story.turn(kBackoffFirstMs).requests == SlurmNodes{1});
  story.say(2, JobState::running, "RUNNING");
  story.join(2, "n1");
  story.turn();
  story.leave("n1");
  story.say(2, JobState::preempted, "PREEMPTED");
  CHECK(story.turn().requests == SlurmNodes{1});
  story.say(3, JobState::failed, "FAILED");
  CHECK(story.turn(kBackoffFirstMs).requests == SlurmNodes{1});
}

TEST_CASE("a final rejection by Slurm ends the waiting, unless there are other nodes") {
  Story story(fixed(1));
  CHECK(story.pool.decide(story.view, story.now).requests == SlurmNodes{1});
  story.pool.rejected("sbatch …\nanswered: Invalid partition", false, story.now);
  CHECK(story.turn(86'400'000).requests.empty());
  CHECK(story.pool.final_failure() == "sbatch …\nanswered: Invalid partition");

  Story other(elastic(1, 4));
  other.turn();
  other.join(1, "n1");
  other.node("n1").is_busy = true;
  other.view.more = 2;
  CHECK(other.pool.decide(other.view, other.now).requests == SlurmNodes{1, 1});
  other.pool.rejected("no more", false, other.now);
  CHECK(other.was_noted("continues with the nodes that it has"));
  other.turn(1'000);
  CHECK_FALSE(other.pool.final_failure());
}

TEST_CASE("a controller that does not answer is asked again") {
  Story story(fixed(1));
  story.pool.decide(story.view, story.now);
  story.pool.rejected("no controller", true, story.now);
  CHECK(story.turn(kBackoffFirstMs - 1).requests.empty());
  CHECK_FALSE(story.pool.final_failure());
  CHECK(story.turn(1).requests == SlurmNodes{1});
}

TEST_CASE("allocations that cannot start, or whose nodes stay silent, are released") {
  Story story(fixed(1));
  story.turn();
  story.say(1, JobState::running, "RUNNING");
  CHECK(story.turn(kJoinMs - 1).cancel.empty());
  story.say(1, JobState::running, "RUNNING");
  CHECK(story.turn(1).cancel == Jobs{1});
  CHECK(story.was_noted("no worker"));
  CHECK(story.turn(kBackoffFirstMs).requests == SlurmNodes{1});
  story.say(2, JobState::pending, "PENDING", "PartitionTimeLimit");
  CHECK(story.turn().cancel == Jobs{2});
  CHECK(story.turn().cancel.empty());
  CHECK(story.pool.final_failure()->find("PartitionTimeLimit") != std::string::npos);
}

TEST_CASE("a job that Slurm forgot has ended after a while, and one in an unknown state is kept") {
  Story story(fixed(1));
  story.turn();
  story.now += kAbsentMs;
  story.pool.polled({}, story.now);
  CHECK(story.pool.jobs() == Jobs{1});
  story.say(1, JobState::unknown, "STRANGE");
  story.now += kAbsentMs;
  story.pool.polled({}, story.now);
  CHECK(story.pool.jobs() == Jobs{1});
  story.now += 1;
  story.pool.polled({}, story.now);
  CHECK(story.pool.jobs().empty());
  CHECK(story.was_noted("no longer lists it"));
}

TEST_CASE("an elastic pool has one job per node, for ready work and within its bounds") {
  Story story(elastic(0, 3));
  story.view.more = 0;
  CHECK(story.turn().requests.empty());
  story.view.more = 2;
  CHECK(story.turn().requests == SlurmNodes{1, 1});
  CHECK(story.turn(5'000).requests.empty());  // they are being started
  story.view.more = 9;
  CHECK(story.turn().requests == SlurmNodes{1});
  CHECK(story.turn().requests.empty());

  Story least(elastic(2, 8));
  CHECK(least.turn().requests == SlurmNodes{1, 1});
  Story many(elastic(0, 100));
  many.view.more = 50;
  CHECK(many.turn().requests.size() == size_t{kRequestsMax});
}

TEST_CASE("an idle node first gets no new work and is then released") {
  AllocationPoolOptions options = elastic(1, 3);
  options.idle_ms = 10'000;
  Story story(options);
  story.view.more = 3;
  story.turn();
  story.turn();
  for (uint64_t job = 1; job <= 3; job++) story.join(job, "n" + std::to_string(job));
  story.view.more = 0;
  story.node("n2").is_busy = true;
  CHECK(story.turn().drain.empty());
  CHECK(story.turn(9'999).drain.empty());
  PoolActions steps = story.turn(1);
  CHECK(steps.drain ==
        std::vector<std::string>{"n1", "n3"});  // one is busy, so two may be released
  CHECK(steps.cancel.empty());
  for (const std::string& name : steps.drain) story.node(name).is_draining = true;
  story.node("n3").is_busy = true;  // it has just received work
  CHECK(story.turn().cancel == Jobs{1});
  story.node("n3").is_busy = false;
  CHECK(story.turn().cancel == Jobs{3});
  CHECK(story.turn(60'000).drain.empty());  // the last one belongs to the minimum
  story.say(1, JobState::cancelled, "CANCELLED");
  CHECK(story.pool.take_notes().empty());  // it was requested
}

TEST_CASE("each event of a job leaves one line for the log") {
  AllocationPoolOptions options = elastic(0, 3);
  options.idle_ms = 10'000;
  Story story(options);
  story.view.more = 1;
  story.turn();
  CHECK(lines_of(story.pool) == Lines{"Slurm job submitted: job 1, 1 node"});
  for (int poll = 0; poll < 2; poll++) {
    story.say(1, JobState::pending, "PENDING", "AssocGrpCpuLimit");
    CHECK(lines_of(story.pool) ==
          (poll == 0 ? Lines{"Slurm job waits: job 1, 1 node: PENDING (AssocGrpCpuLimit)"}
                     : Lines{}));
  }
  for (int poll = 0; poll < 2; poll++) {
    story.say(1, JobState::running, "RUNNING");
    CHECK(lines_of(story.pool) ==
          (poll == 0 ? Lines{"Slurm job started: job 1, 1 node"} : Lines{}));
  }
  story.say(1, JobState::suspended, "SUSPENDED");
  story.say(1, JobState::running, "RUNNING");
  CHECK(lines_of(story.pool) ==
        Lines{"Slurm job suspended: job 1, 1 node", "Slurm job continues: job 1, 1 node"});
  story.say(1, JobState::pending, "PENDING");
  story.say(1, JobState::running, "RUNNING");
  CHECK(lines_of(story.pool) ==
        Lines{"Slurm job requeued: job 1, 1 node", "Slurm job started: job 1, 1 node"});
  story.view.more = 0;
  story.join(1, "n1");
  story.turn();
  story.leave("n1");
  story.say(1, JobState::preempted, "PREEMPTED");
  CHECK(lines_of(story.pool) == Lines{"Slurm job ended: job 1, 1 node: PREEMPTED"});

  story.view.more = 1;
  story.turn();
  story.say(2, JobState::node_fail, "NODE_FAIL");
  CHECK(lines_of(story.pool) ==
        Lines{"Slurm job submitted: job 2, 1 node",
              "! Slurm job failed: the allocation 2 of 1 node is over: NODE_FAIL, and none of its "
              "workers had joined; Slurm is asked again in 1s"});
  story.pool.rejected("no controller", true, story.now);
  CHECK(lines_of(story.pool) ==
        Lines{"! Slurm request rejected: no controller; Slurm is asked again in 2s"});

  // Two commands for the same job: the second one is that of the head's end.
  story.pool.adopt(7, 1, story.now);
  story.pool.cancelled({7, 8});
  story.pool.cancelled({7});
  CHECK(lines_of(story.pool) == Lines{"Slurm job adopted: job 7, 1 node",
                                      "Slurm job cancelled: job 7, 1 node",
                                      "Slurm job cancelled: job 8"});
}

TEST_CASE("allocations of an earlier head are kept and not requested again") {
  Story story(fixed(2));
  story.pool.adopt(77, 2, story.now);
  CHECK(story.turn().requests.empty());
  CHECK(story.pool.nodes_of(77) == 2);
  story.say(77, JobState::completed, "COMPLETED");
  CHECK(story.was_noted("none of its workers had joined"));
  CHECK(story.turn(kBackoffFirstMs).requests == SlurmNodes{2});
}
