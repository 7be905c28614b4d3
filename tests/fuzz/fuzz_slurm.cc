// Output of Slurm's commands: it is a list of jobs or an error, and a list survives printing and
// parsing.
#include "engine/cluster/slurm/answers.hpp"

namespace {

using namespace flow;
using namespace flow::slurm;

std::string written(const std::vector<JobStatus>& jobs) {
  std::string text;
  for (const JobStatus& job : jobs)
    text += std::to_string(job.id) + "|" + job.word + "|" +
            (job.reason.empty() ? "None" : job.reason) + "\n";
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto jobs = parse_squeue(text);
  if (jobs.ok()) {
    for (const JobStatus& job : *jobs) FLOW_CHECK(job.id > 0 && !job.word.empty());
    auto again = parse_squeue(written(*jobs));
    FLOW_CHECK(again.ok() && again->size() == jobs->size());
    for (size_t i = 0; i < jobs->size(); i++)
      FLOW_CHECK((*again)[i].id == (*jobs)[i].id && (*again)[i].state == (*jobs)[i].state);
  }
  auto job = parse_sbatch(text);
  if (job.ok()) FLOW_CHECK(*job > 0 && *parse_sbatch(std::to_string(*job)) == *job);
  (void)is_transient(text);
  (void)never_starts(text);
  return 0;
}
