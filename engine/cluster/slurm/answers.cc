#include "engine/cluster/slurm/answers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace flow::slurm {

namespace {

constexpr std::array<std::pair<std::string_view, JobState>, 27> kStates{{
    {"PENDING", JobState::pending},      {"REQUEUED", JobState::pending},
    {"REQUEUE_FED", JobState::pending},  {"CONFIGURING", JobState::pending},
    {"SIGNALING", JobState::running},    {"STAGE_OUT", JobState::running},
    {"EXPEDITING", JobState::pending},   {"POWER_UP_NODE", JobState::pending},
    {"UPDATE_DB", JobState::running},    {"RUNNING", JobState::running},
    {"COMPLETING", JobState::running},   {"RESIZING", JobState::running},
    {"LAUNCH_FAILED", JobState::failed}, {"SUSPENDED", JobState::suspended},
    {"STOPPED", JobState::suspended},    {"REQUEUE_HOLD", JobState::held},
    {"SPECIAL_EXIT", JobState::held},    {"RESV_DEL_HOLD", JobState::held},
    {"COMPLETED", JobState::completed},  {"TIMEOUT", JobState::timed_out},
    {"DEADLINE", JobState::timed_out},   {"PREEMPTED", JobState::preempted},
    {"REVOKED", JobState::preempted},    {"NODE_FAIL", JobState::node_fail},
    {"BOOT_FAIL", JobState::node_fail},  {"OUT_OF_MEMORY", JobState::failed},
    {"FAILED", JobState::failed},
}};

/// Errors of sbatch after which a retry may succeed.
constexpr std::array<std::string_view, 12> kTransientRefusals{
    "Unable to contact slurm controller",
    "Slurm controller not responding",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection refused",
    "temporarily unable to accept job",
    "Resource temporarily unavailable",
    "Slurm backup controller in standby mode",
    "job submit limit",
    "Job violates accounting/QOS policy",
    "Unable to confirm allocation",
    "did not answer within",
};

/// Messages of scancel about a job that has ended.
constexpr std::array<std::string_view, 2> kIsOver{
    "Invalid job id specified",
    "Job/step already completing or completed",
};

/// Reasons of a job that waits until a user changes the job or its limits.
constexpr std::array<std::string_view, 9> kNeverStarts{
    "BadConstraints",           "PartitionTimeLimit", "PartitionNodeLimit",
    "PartitionConfig",  // more nodes than the partition has
    "InvalidAccount",           "InvalidQOS",         "AccountNotAllowed",  "QOSNotAllowed",
    "DependencyNeverSatisfied",
};

JobState state_of(std::string_view word) {
  if (word.starts_with("CANCELLED")) return JobState::cancelled;  // some versions append the user
  for (const auto& [name, state] : kStates)
    if (name == word) return state;
  return JobState::unknown;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  size_t from = text.find_first_not_of(kBlank);
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(kBlank) - from + 1);
}

/// Removes the first line from `text` and returns it without its newline.
std::string_view take_line(std::string_view& text) {
  size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return trimmed(line);
}

/// Parses digits; 0 is invalid.
bool read_id(std::string_view text, uint64_t& id) {
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), id);
  return failed == std::errc() && end == text.data() + text.size() && id > 0;
}

bool is_array_job(std::string_view id) {
  return !id.empty() && id[0] >= '0' && id[0] <= '9' &&
         id.find_first_of("_+") != std::string_view::npos;
}

Error no_answer(const char* of, std::string_view line) {
  return environment_error(
      fmt::format("`{}` is not a line of {}", line.substr(0, kWordBytesMax), of));
}

}  // namespace

Result<std::vector<JobStatus>> parse_squeue(std::string_view text) {
  if (text.size() > kAnswerBytesMax) return environment_error("squeue printed more than the limit");
  std::vector<JobStatus> jobs;
  while (!text.empty()) {
    std::string_view line = take_line(text);
    if (line.empty()) continue;
    size_t first = line.find('|');
    size_t second = first == std::string_view::npos ? first : line.find('|', first + 1);
    if (second == std::string_view::npos) return no_answer("squeue", line);
    JobStatus job;
    if (!read_id(line.substr(0, first), job.id)) {
      if (is_array_job(line.substr(0, first))) continue;
      return no_answer("squeue", line);
    }
    job.word = line.substr(first + 1, std::min(second - first - 1, kWordBytesMax));
    if (job.word.empty()) return no_answer("squeue", line);
    job.state = state_of(job.word);
    std::string_view reason = line.substr(second + 1).substr(0, kWordBytesMax);
    if (reason != "None") job.reason = reason;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<uint64_t> parse_sbatch(std::string_view text) {
  std::string_view last;
  while (!text.empty()) {
    std::string_view line = take_line(text);
    if (!line.empty()) last = line;
  }
  uint64_t id = 0;
  if (read_id(last.substr(0, last.find(';')), id)) return id;
  return no_answer("sbatch --parsable", last);
}

bool is_transient(std::string_view refusal) {
  return std::any_of(
      kTransientRefusals.begin(), kTransientRefusals.end(),
      [&](std::string_view words) { return refusal.find(words) != std::string_view::npos; });
}

bool are_over(std::string_view refusal) {
  bool all_over = false;
  while (!refusal.empty()) {
    std::string_view line = take_line(refusal);
    if (line.empty()) continue;
    all_over = std::any_of(kIsOver.begin(), kIsOver.end(), [&](std::string_view words) {
      return line.find(words) != std::string_view::npos;
    });
    if (!all_over) return false;
  }
  return all_over;
}

bool never_starts(std::string_view reason) {
  return std::find(kNeverStarts.begin(), kNeverStarts.end(), reason) != kNeverStarts.end();
}

}  // namespace flow::slurm
