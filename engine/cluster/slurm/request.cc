#include "engine/cluster/slurm/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/base/files.hpp"
#include "engine/base/size_units.hpp"
#include "flow/digest.hpp"

namespace flow::slurm {

namespace {

constexpr int64_t kLeadSeconds = 120;
constexpr int64_t kLeaveSeconds = 10;  // from the end of a drain to the end of the job
constexpr int32_t kNodesMax = 4'000;
constexpr size_t kNameDigits = 12;

bool is_all_of(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

/// Parses minutes or [days-]hours:minutes:seconds; 0 if it is neither.
int64_t seconds_of(std::string_view time) {
  int64_t days = 0;
  size_t dash = time.find('-');
  auto number = [](std::string_view digits) {
    int64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  };
  if (dash != std::string_view::npos) {
    days = number(time.substr(0, dash));
    time.remove_prefix(dash + 1);
  }
  std::vector<int64_t> parts;
  while (true) {
    size_t colon = time.find(':');
    parts.push_back(number(time.substr(0, colon)));
    if (colon == std::string_view::npos) break;
    time.remove_prefix(colon + 1);
  }
  constexpr int64_t kMinute = 60, kHour = 3'600, kDay = 86'400;
  bool has_seconds = parts.size() == 3;
  parts.resize(3, 0);
  if (dash != std::string_view::npos)
    return days * kDay + parts[0] * kHour + parts[1] * kMinute + parts[2];
  return has_seconds ? parts[0] * kHour + parts[1] * kMinute + parts[2]
                     : parts[0] * kMinute + parts[1];
}

void add_option(CommandLine& command, const char* name, const std::string& value) {
  if (!value.empty()) command.push_back(fmt::format("--{}={}", name, value));
}

/// Options of a step with one worker per node: Slurm neither binds nor divides resources, and the
/// end of one worker does not end the others.
CommandLine step_options() {
  return {"--overlap",       "--ntasks-per-node=1", "--kill-on-bad-exit=0",
          "--wait=0",        "--no-kill",           "--cpu-bind=none",
          "--gpu-bind=none", "--mpi=none",          "--unbuffered"};
}

/// Reads the resources that Slurm allocated on the node and starts the worker.
std::string worker_lines(const SlurmOptions& options, const WorkerLaunch& launch) {
  std::string named;
  for (const std::string& each : arguments_of(launch.custom_resources)) named += " " + each;
  return fmt::format(
      R"sh(dir=${{FLOW_WORKER_DIR:-/var/tmp}}/flow-worker-$(id -u)-{}-$SLURMD_NODENAME
if [ "$1" = drain ]; then
  kill -USR2 "$(cat "$dir.pid")"
  exit
fi
memory=
if [ "${{SLURM_MEM_PER_NODE:-0}}" -gt 0 ]; then memory="--memory ${{SLURM_MEM_PER_NODE}}MiB"; fi
# Both signals are for the worker. bash waits for it in the foreground: without a trap a signal would end bash, and the
# exit code would be lost.
trap : USR2 TERM
(echo $BASHPID >"$dir.pid"; exec {} worker --join {} --secret-file {} --name "$SLURMD_NODENAME" --dir "$dir" \
  --jobs "$SLURM_CPUS_ON_NODE" $memory --label {}="$SLURM_JOB_ID" \
  --drain {}s --head-timeout {}s{} "${{@:2}}")
code=$?
if [ $code = 0 ]; then  # a failed attempt may have left folders without write permission
  rm -rf "$dir" 2>/dev/null || {{ chmod -R u+rwX "$dir"; rm -rf "$dir"; }}
fi
rm -f "$dir.pid"
exit $code
)sh",
      launch.name, quote_shell(launch.program), quote_shell(launch.head),
      quote_shell(launch.secret_file), kJobLabel, lead_seconds(options) - kLeaveSeconds,
      kHeadTimeoutMs / 1000, named);
}

}  // namespace

std::string name_of_state(const std::string& state_dir) {
  return sha256(state_dir).hex().substr(0, kNameDigits);
}

std::string script_path(const WorkerLaunch& launch) { return launch.folder + "/job.sh"; }

std::string log_path(const std::string& folder, const std::string& job) {
  return folder + "/" + job + ".log";
}

Result<std::string> slurm_time(const std::string& text) {
  bool is_slurm_time =
      is_all_of(text, "0123456789:-") && text.front() != '-' && seconds_of(text) > 0;
  if (is_slurm_time) return text;
  auto ms = parse_duration_ms(text);
  if (!ms.ok() || *ms <= 0)
    return user_error(fmt::format(
        "`{}` is not a time that Slurm accepts: write for example 2h, or 1-12:00:00, or minutes",
        text));
  int64_t seconds = (*ms + 999) / 1000;
  return fmt::format("{}-{:02}:{:02}:{:02}", seconds / 86'400, seconds / 3'600 % 24,
                     seconds / 60 % 60, seconds % 60);
}

int64_t lead_seconds(const SlurmOptions& options) {
  auto time = options.time.empty() ? Result<std::string>(std::string()) : slurm_time(options.time);
  int64_t seconds = time.ok() ? seconds_of(*time) : 0;
  constexpr int64_t kLeast = kLeaveSeconds + 5;
  if (seconds == 0) return kLeadSeconds;
  return std::clamp(seconds / 4, kLeast, kLeadSeconds);
}

Status check(const SlurmOptions& options) {
  auto wrong = [](const std::string& what) { return user_error(what); };
  if (options.nodes < 0 || options.nodes > kNodesMax)
    return wrong(fmt::format("an allocation has from 1 to {} nodes", kNodesMax));
  if (options.gpus_per_node < 0)
    return wrong(
        fmt::format("{} is not a number of GPUs: give the number that tasks use on each node",
                    options.gpus_per_node));
  bool is_elastic = options.nodes_max > 0;
  if (is_elastic && (options.nodes_min < 0 || options.nodes_min > options.nodes_max ||
                     options.nodes_max > kNodesMax))
    return wrong(fmt::format(
        "{} to {} nodes is not a range: the smaller number comes first, and {} is the limit",
        options.nodes_min, options.nodes_max, kNodesMax));
  if (is_elastic && options.nodes > 0 &&
      (options.nodes < options.nodes_min || options.nodes > options.nodes_max))
    return wrong(fmt::format("it cannot begin with {} nodes and have {} to {}", options.nodes,
                             options.nodes_min, options.nodes_max));
  if (!options.time.empty()) FLOW_TRY(slurm_time(options.time));
  return {};
}

std::string job_script(const SlurmOptions& options, const WorkerLaunch& launch) {
  std::string step;
  for (const std::string& option : step_options()) step += " " + option;
  return fmt::format(R"sh(#!/bin/bash
# Written by flow: starts a worker on each node of the job. Slurm sends USR2 before the time limit; the
# workers drain then. A signal to a step would reach all its processes, so another step notifies the workers.
await() {{  # PID: stores its exit code in $code
  while true; do
    wait $1
    code=$?
    if ! kill -0 $1 2>/dev/null; then break; fi
  done
  wait $1  # again: a signal may have interrupted the first, which then returned the signal's number
  local again=$?
  if [ $again != 127 ]; then code=$again; fi
}}
on_nodes() {{
  srun{} --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" bash {} "$@"
}}
if [ $# -gt 0 ]; then
{}fi
trap 'on_nodes drain &' USR2
trap : TERM
on_nodes worker &
await $!
exit $code
)sh",
                     step, quote_shell(script_path(launch)), worker_lines(options, launch));
}

CommandLine sbatch_command(const SlurmOptions& options, const WorkerLaunch& launch, int32_t nodes) {
  CommandLine command{"sbatch",
                      "--parsable",
                      "--job-name=flow-" + launch.name,
                      fmt::format("--nodes={}", nodes),
                      "--ntasks-per-node=1",
                      "--exclusive",
                      "--mem=0",
                      "--no-requeue",
                      "--no-kill",
                      "--open-mode=append",
                      fmt::format("--signal=B:USR2@{}", lead_seconds(options)),
                      "--output=" + log_path(launch.folder, "%j")};
  if (!options.time.empty()) {
    auto time = slurm_time(options.time);
    if (time.ok()) add_option(command, "time", *time);
  }
  if (options.gpus_per_node > 0)
    add_option(command, "gpus-per-node", std::to_string(options.gpus_per_node));
  add_option(command, "partition", options.partition);
  add_option(command, "account", options.account);
  add_option(command, "qos", options.qos);
  add_option(command, "constraint", options.constraint);
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  command.push_back(script_path(launch));
  return command;
}

CommandLine srun_command(const WorkerLaunch& launch, const std::string& job,
                         const std::string& nodes) {
  CommandLine command{"srun", "--jobid=" + job, "--nodes=" + nodes, "--ntasks=" + nodes};
  for (const std::string& option : step_options()) command.push_back(option);
  command.insert(command.end(), {"bash", script_path(launch), "worker", "--until-eof"});
  return command;
}

CommandLine squeue_command(const WorkerLaunch& launch) {
  return {"squeue", "--noheader", "--states=all", "--name=flow-" + launch.name,
          "--format=%i|%T|%r"};
}

CommandLine scancel_command(const std::vector<uint64_t>& jobs) {
  CommandLine command{"scancel"};
  for (uint64_t job : jobs) command.push_back(std::to_string(job));
  return command;
}

std::string text_of(const CommandLine& command) {
  std::string text;
  for (const std::string& word : command) {
    size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    size_t begins = equals == std::string::npos ? 0 : equals + 1;
    text += (text.empty() ? "" : " ") + word.substr(0, begins);
    if (begins < word.size() || begins == 0) text += quote_shell(word.substr(begins));
  }
  return text;
}

}  // namespace flow::slurm
