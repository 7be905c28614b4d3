// Options shared by run, resume, retry and plan.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

constexpr int kJobsMax = 100'000, kWorkersMax = 256, kSlurmNodesMax = 4'000;

struct RunArguments {
  std::vector<std::string> params;     // k=v
  std::vector<std::string> resources;  // name=n
  std::string params_file, name, out, on_end, serve_for, grace, front_lease, budget;
  int32_t jobs = 0, workers = 0;
  bool fresh = false, fail_fast = false, strict = false, offline = false, encrypt = false,
       logs = false, detach = false;
  std::string on, elastic, idle, listen, lost_after;
  SlurmOptions slurm;
};

void add_parameter_options(CLI::App* verb, RunArguments& arguments);  // --param --params --fresh
void add_jobs_option(CLI::App* verb, RunArguments& arguments);
void add_resource_option(CLI::App* verb, std::vector<std::string>& resources);
/// Checked and converted. Invalid options end the process with exit code 2.
std::vector<std::pair<std::string, double>> resources_of(const std::vector<std::string>& texts);
void add_workers_option(CLI::App* verb, RunArguments& arguments);
/// For the head of a cluster. Checked and converted. Invalid options end the process with exit code
/// 2.
void add_lost_after_option(CLI::App* verb, std::string& lost_after);
int64_t lost_after_of(const std::string& text);
void add_slurm_options(CLI::App* verb, RunArguments& arguments);  // --on --nodes --elastic …
/// Reads "2:8", the value of `option`. An invalid one ends the process with exit code 2.
void read_elastic(const std::string& option, const std::string& text, SlurmOptions& options);
void add_watch_options(CLI::App* verb, VerbContext& context,
                       RunArguments& arguments);  // --serve-for --grace --logs --color --quiet
void add_budget_option(CLI::App* verb, RunArguments& arguments);  // --budget
void add_on_end_option(CLI::App* verb, RunArguments& arguments);  // --on-end
/// --detach: for the verbs whose runs it applies to.
void add_detach_option(CLI::App* verb, RunArguments& arguments);
/// Those of the verbs that continue a run: the engine's, the log's and the watch's.
void add_rerun_options(CLI::App* verb, VerbContext& context, RunArguments& arguments);

/// Checked and converted. Invalid options end the process with exit code 2.
RunOptions run_options(const RunArguments& arguments);
/// The requested engine. Invalid options end the process with exit code 2.
EngineOptions engine_options(const VerbContext& context, const RunArguments& arguments);
/// The script that FILE|DIR|- names; for `-` reads the standard input into options.script_text. If
/// it is missing, the process ends with exit code 2.
std::string script_path(const std::string& file, RunOptions& options);
/// The script that FILE|DIR names. If it is missing, the process ends with exit code 2.
std::string script_path(const std::string& file_or_dir);
/// Whether FILE|RUN means a script or `-`, not a run.
bool names_a_script(const std::string& target);

}  // namespace flow::cli
