// Output of Slurm's commands, as printed by versions since 22.05.
#include <catch2/catch.hpp>

#include "engine/cluster/slurm/answers.hpp"

using namespace flow;
using namespace flow::slurm;

TEST_CASE("squeue's lines are jobs, and every state of Slurm has a meaning") {
  auto jobs = parse_squeue(
      "12|RUNNING|None\n13|PENDING|Nodes required for job are DOWN, DRAINED|or reserved\n\n"
      "14_[1-3]|PENDING|Resources\n15+0|RUNNING|None\n16|CANCELLED by 1000|None\r\n"
      "17|SOMETHING_NEW|Reason");
  REQUIRE(jobs.ok());
  CHECK(*jobs == std::vector<JobStatus>{{12, JobState::running, "RUNNING", ""},
                                        {13, JobState::pending, "PENDING",
                                         "Nodes required for job are DOWN, DRAINED|or reserved"},
                                        {16, JobState::cancelled, "CANCELLED by 1000", ""},
                                        {17, JobState::unknown, "SOMETHING_NEW", "Reason"}});
  CHECK(parse_squeue("")->empty());
  auto state_of = [](const std::string& word) {
    return parse_squeue("1|" + word + "|None\n")->at(0).state;
  };
  for (const char* word : {"PENDING", "CONFIGURING", "REQUEUED"})
    CHECK(state_of(word) == JobState::pending);
  for (const char* word : {"RUNNING", "COMPLETING", "STAGE_OUT"})
    CHECK(state_of(word) == JobState::running);
  for (const char* word : {"SUSPENDED", "STOPPED"}) CHECK(state_of(word) == JobState::suspended);
  CHECK(state_of("REQUEUE_HOLD") == JobState::held);
  CHECK(state_of("COMPLETED") == JobState::completed);
  for (const char* word : {"TIMEOUT", "DEADLINE"}) CHECK(state_of(word) == JobState::timed_out);
  for (const char* word : {"PREEMPTED", "REVOKED"}) CHECK(state_of(word) == JobState::preempted);
  for (const char* word : {"NODE_FAIL", "BOOT_FAIL"}) CHECK(state_of(word) == JobState::node_fail);
  for (const char* word : {"FAILED", "OUT_OF_MEMORY"}) CHECK(state_of(word) == JobState::failed);
  CHECK_FALSE(is_over(JobState::unknown));
  CHECK_FALSE(is_over(JobState::suspended));
  CHECK(is_over(JobState::completed));
}

TEST_CASE("invalid output is an error that shows it") {
  for (const char* wrong :
       {"garbage", "12|RUNNING", "|RUNNING|None", "0|RUNNING|None", "x12|RUNNING|None", "12||None",
        "99999999999999999999999|RUNNING|None"}) {
    auto jobs = parse_squeue(std::string("1|RUNNING|None\n") + wrong + "\n");
    REQUIRE_FALSE(jobs.ok());
    CHECK(jobs.error().message.find("squeue") != std::string::npos);
  }
  std::string longest(kAnswerBytesMax, '\n');
  CHECK(parse_squeue(longest).ok());
  CHECK_FALSE(parse_squeue(longest + "\n").ok());
}

TEST_CASE("sbatch's output is a job number, whatever a site prints before it") {
  CHECK(*parse_sbatch("42\n") == 42);
  CHECK(*parse_sbatch("42;east\n") == 42);
  CHECK(*parse_sbatch("Welcome!\nYour balance: 17 hours\n42\n\n") == 42);
  for (const char* wrong : {"", "\n", "Submitted batch job 42", "-1", "0", "42 43"})
    CHECK_FALSE(parse_sbatch(wrong).ok());
}

TEST_CASE("temporary errors are distinguished from final ones") {
  CHECK(
      is_transient("sbatch: error: Batch job submission failed: Unable to contact slurm controller "
                   "(connect failure)"));
  CHECK(is_transient("sbatch: error: Batch job submission failed: Socket timed out on send/recv"));
  CHECK_FALSE(
      is_transient("sbatch: error: Batch job submission failed: Invalid partition name "
                   "specified"));
  CHECK_FALSE(is_transient(""));
  CHECK(never_starts("PartitionTimeLimit"));
  CHECK(never_starts("BadConstraints"));
  CHECK(never_starts("PartitionConfig"));
  CHECK_FALSE(never_starts("Resources"));
  CHECK_FALSE(never_starts(""));
}

TEST_CASE("scancel's errors for ended jobs are distinguished from real failures") {
  const std::string gone = "scancel: error: Kill job error on job id 7: Invalid job id specified\n";
  const std::string over =
      "scancel: error: Kill job error on job id 8: Job/step already completing or completed\n";
  CHECK(are_over(gone));
  CHECK(are_over(gone + "\n" + over));
  CHECK_FALSE(are_over(""));
  CHECK_FALSE(are_over(gone + "slurm_kill_job: Unable to contact slurm controller"));
  CHECK_FALSE(
      are_over("scancel: error: Kill job error on job id 9: Access/permission denied\n" + gone));
}
