// A story each: what is asked, when it is asked again, and what is given back.
#include <catch2/catch.hpp>

#include "engine/cluster/slurm/allocation_pool.hpp"

using namespace flow;
using namespace flow::slurm;

namespace {

/// A pool, and a Slurm that does what a test says.
struct Story {
  AllocationPool pool;
  ClusterView view;
  int64_t now = 1'000'000;
  uint64_t next_job = 1;
  std::map<uint64_t, JobStatus> said;  // last of each

  explicit Story(const AllocationPoolOptions& options) : pool(options) { view.has_work = true; }

  /// Decides once, and gives each thing that is asked for a number.
  PoolActions turn(int64_t after_ms = 0) {
    now += after_ms;
    PoolActions steps = pool.decide(view, now);
    for (int32_t nodes : steps.ask) {
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

using SlurmNodes = std::vector<int32_t>;
using Jobs = std::vector<uint64_t>;

}  // namespace

TEST_CASE("nodes are asked for when there is work, once") {
  Story story(fixed(4));
  story.view.has_work = false;
  CHECK(story.turn().ask.empty());
  story.view.has_work = true;
  CHECK(story.turn().ask == SlurmNodes{4});
  CHECK(story.turn(60'000).ask.empty());
  story.say(1, JobState::pending, "PENDING", "Resources");
  CHECK(story.turn(3'600'000).ask.empty());
  CHECK(story.pool.status() == "the allocation 1 of 4 nodes is PENDING (Resources)");
  story.say(1, JobState::running, "RUNNING");
  for (const char* name : {"n1", "n2", "n3", "n4"}) story.join(1, name);
  CHECK(story.turn().ask.empty());
  CHECK(story.pool.take_notes().empty());
}

TEST_CASE("what drains is replaced before it is over, and its end is no failure") {
  Story story(fixed(2));
  story.turn();
  story.say(1, JobState::running, "RUNNING");
  story.join(1, "n1");
  story.join(1, "n2");
  story.turn(600'000);
  story.node("n1").is_draining = story.node("n2").is_draining = true;
  CHECK(story.turn().ask == SlurmNodes{2});
  CHECK(story.turn().ask.empty());
  story.leave("n1");
  story.leave("n2");
  CHECK(story.turn().ask.empty());
  story.say(1, JobState::timed_out, "TIMEOUT");
  CHECK(story.was_noted("TIMEOUT"));
  CHECK(story.turn().ask.empty());
  CHECK(story.pool.jobs() == Jobs{2});
}

TEST_CASE("a node of several that is lost is asked for alone") {
  Story story(fixed(3));
  story.turn();
  story.say(1, JobState::running, "RUNNING");
  for (const char* name : {"n1", "n2", "n3"}) story.join(1, name);
  story.turn();
  story.node("n2").is_up = false;
  story.now += kJoinMs;
  story.say(1, JobState::running, "RUNNING");
  CHECK(story.turn().ask == SlurmNodes{1});
}

TEST_CASE("what is cancelled by somebody is asked for again, later each time, and not for ever") {
  Story story(fixed(1));
  int64_t pause = kBackoffFirstMs;
  for (uint32_t failure = 1; failure <= kFailuresMax; failure++) {
    CHECK(story.turn().ask == SlurmNodes{1});
    story.say(story.next_job - 1, JobState::cancelled, "CANCELLED");
    CHECK(story.was_noted("CANCELLED"));
    CHECK(story.turn(pause - 1).ask.empty());
    CHECK(!story.pool.given_up() == (failure < kFailuresMax));
    story.now++;
    pause = std::min(2 * pause, kBackoffLastMs);
  }
  CHECK(story.turn(86'400'000).ask.empty());
  CHECK(story.pool.given_up()->find("CANCELLED") != std::string::npos);
}

TEST_CASE("an allocation that did its work begins the count of failures anew") {
  Story story(fixed(1));
  story.turn();
  story.say(1, JobState::node_fail, "NODE_FAIL");
  CHECK(story.turn(kBackoffFirstMs).ask == SlurmNodes{1});
  story.say(2, JobState::running, "RUNNING");
  story.join(2, "n1");
  story.turn();
  story.leave("n1");
  story.say(2, JobState::preempted, "PREEMPTED");
  CHECK(story.turn().ask == SlurmNodes{1});
  story.say(3, JobState::failed, "FAILED");
  CHECK(story.turn(kBackoffFirstMs).ask == SlurmNodes{1});
}

TEST_CASE("what Slurm refuses for good ends the waiting, unless there are other nodes") {
  Story story(fixed(1));
  CHECK(story.pool.decide(story.view, story.now).ask == SlurmNodes{1});
  story.pool.rejected("sbatch …\nanswered: Invalid partition", false, story.now);
  CHECK(story.turn(86'400'000).ask.empty());
  CHECK(story.pool.given_up() == "sbatch …\nanswered: Invalid partition");

  Story other(elastic(1, 4));
  other.turn();
  other.join(1, "n1");
  other.node("n1").is_busy = true;
  other.view.more = 2;
  CHECK(other.pool.decide(other.view, other.now).ask == SlurmNodes{1, 1});
  other.pool.rejected("no more", false, other.now);
  CHECK(other.was_noted("continues with the nodes that it has"));
  other.turn(1'000);
  CHECK_FALSE(other.pool.given_up());
}

TEST_CASE("a controller that does not answer is asked again") {
  Story story(fixed(1));
  story.pool.decide(story.view, story.now);
  story.pool.rejected("no controller", true, story.now);
  CHECK(story.turn(kBackoffFirstMs - 1).ask.empty());
  CHECK_FALSE(story.pool.given_up());
  CHECK(story.turn(1).ask == SlurmNodes{1});
}

TEST_CASE("what would never start, and what begins and stays mute, is given back") {
  Story story(fixed(1));
  story.turn();
  story.say(1, JobState::running, "RUNNING");
  CHECK(story.turn(kJoinMs - 1).cancel.empty());
  story.say(1, JobState::running, "RUNNING");
  CHECK(story.turn(1).cancel == Jobs{1});
  CHECK(story.was_noted("no worker"));
  CHECK(story.turn(kBackoffFirstMs).ask == SlurmNodes{1});
  story.say(2, JobState::pending, "PENDING", "PartitionTimeLimit");
  CHECK(story.turn().cancel == Jobs{2});
  CHECK(story.turn().cancel.empty());
  CHECK(story.pool.given_up()->find("PartitionTimeLimit") != std::string::npos);
}

TEST_CASE("a job that Slurm forgot is gone after a while, and one it has no word for is kept") {
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

TEST_CASE("an elastic one has a job a node, for what is ready and never beyond its bounds") {
  Story story(elastic(0, 3));
  story.view.more = 0;
  CHECK(story.turn().ask.empty());
  story.view.more = 2;
  CHECK(story.turn().ask == SlurmNodes{1, 1});
  CHECK(story.turn(5'000).ask.empty());  // they are on their way
  story.view.more = 9;
  CHECK(story.turn().ask == SlurmNodes{1});
  CHECK(story.turn().ask.empty());

  Story least(elastic(2, 8));
  CHECK(least.turn().ask == SlurmNodes{1, 1});
  Story many(elastic(0, 100));
  many.view.more = 50;
  CHECK(many.turn().ask.size() == size_t{kRequestsMax});
}

TEST_CASE("a node that has nothing to do takes nothing new first, and is then given back") {
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
  CHECK(steps.drain == std::vector<std::string>{"n1", "n3"});  // one is busy: so many may go
  CHECK(steps.cancel.empty());
  for (const std::string& name : steps.drain) story.node(name).is_draining = true;
  story.node("n3").is_busy = true;  // it was given something just before
  CHECK(story.turn().cancel == Jobs{1});
  story.node("n3").is_busy = false;
  CHECK(story.turn().cancel == Jobs{3});
  CHECK(story.turn(60'000).drain.empty());  // the last is one of min
  story.say(1, JobState::cancelled, "CANCELLED");
  CHECK(story.pool.take_notes().empty());  // it was asked for
}

TEST_CASE("what an earlier head left is kept on, and not asked for again") {
  Story story(fixed(2));
  story.pool.adopt(77, 2, story.now);
  CHECK(story.turn().ask.empty());
  CHECK(story.pool.nodes_of(77) == 2);
  story.say(77, JobState::completed, "COMPLETED");
  CHECK(story.was_noted("none of its workers had joined"));
  CHECK(story.turn(kBackoffFirstMs).ask == SlurmNodes{2});
}
