// Parses the output of Slurm's commands. It is tolerant, because versions and sites differ.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow::slurm {

/// The state of a job from the view of its submitter.
enum class JobState : uint8_t {
  pending,    // also requeued or configuring: it may get nodes later
  held,       // it does not start without a user
  running,    // it has nodes, or is about to release them
  suspended,  // its processes are stopped, and may continue
  completed,  // it ended by itself
  timed_out,  // its time limit was reached
  preempted,  // its nodes were taken away
  node_fail,  // a node failed
  cancelled,  // by a user or an administrator
  failed,     // its script failed or ran out of memory
  unknown,    // a state of another version
};
inline bool is_over(JobState state) {
  return state >= JobState::completed && state != JobState::unknown;
}

struct JobStatus {
  uint64_t id = 0;
  JobState state = JobState::unknown;
  std::string word;    // Slurm's word for the state
  std::string reason;  // "" if there is none
  bool operator==(const JobStatus&) const = default;
};

constexpr size_t kAnswerBytesMax = 4u << 20;
constexpr size_t kWordBytesMax = 256;

/// Parses lines of `id|state|reason`. Elements of job arrays and heterogeneous jobs are skipped:
/// flow submits none. The error names the first invalid line.
Result<std::vector<JobStatus>> parse_squeue(std::string_view text);
/// Parses `sbatch --parsable`: the id, or the id and the cluster's name. Skips earlier lines that a
/// site prints.
Result<uint64_t> parse_sbatch(std::string_view text);

/// Whether the same request may succeed later: the controller did not answer, or a limit is
/// reached.
bool is_transient(std::string_view refusal);
/// Whether every job that scancel did not cancel has ended already, according to its output.
bool are_over(std::string_view refusal);
/// Whether a job that waits for this reason will not start unless a user changes it.
bool never_starts(std::string_view reason);

}  // namespace flow::slurm
