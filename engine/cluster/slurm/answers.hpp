// What Slurm's commands print, read with care: versions and sites differ.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow::slurm {

/// What a job is to the one who asked for it.
enum class JobState : uint8_t {
  pending,    // or requeued, configuring: it may have nodes later
  held,       // it will not start by itself
  running,    // it has nodes, or is about to give them back
  suspended,  // its processes are stopped, and may go on
  completed,  // by itself
  timed_out,  // its time is over
  preempted,  // its nodes were taken from it
  node_fail,  // a node broke
  cancelled,  // by somebody
  failed,     // its script, or its memory
  unknown,    // a word of another version
};
inline bool is_over(JobState state) {
  return state >= JobState::completed && state != JobState::unknown;
}

struct JobStatus {
  uint64_t id = 0;
  JobState state = JobState::unknown;
  std::string word;    // Slurm's for it
  std::string reason;  // "" where it has none
  bool operator==(const JobStatus&) const = default;
};

constexpr size_t kAnswerBytesMax = 4u << 20;
constexpr size_t kWordBytesMax = 256;

/// Lines of `id|state|reason`. Parts of arrays and of jobs of several kinds are passed over: none
/// of ours is one. An error names the first line that is none.
Result<std::vector<JobStatus>> parse_squeue(std::string_view text);
/// `--parsable`: the id, or the id and the cluster's name. Lines before it, which sites print, are
/// passed over.
Result<uint64_t> parse_sbatch(std::string_view text);

/// Whether the same may be taken later: the controller did not answer, or what it has to give is
/// used up.
bool is_transient(std::string_view refusal);
/// Whether scancel says of all that it was told to cancel and did not that they are over.
bool are_over(std::string_view refusal);
/// Whether a job that waits for this will not start unless somebody changes it.
bool never_starts(std::string_view reason);

}  // namespace flow::slurm
