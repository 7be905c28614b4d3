#include "engine/head/slurm_autoscaler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/files.hpp"
#include "engine/base/log.hpp"
#include "engine/process/run_command.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kTurnMs = 500;
constexpr int64_t kPollOftenMs = 1'000, kPollSeldomMs = 15'000;
constexpr int64_t kOftenForMs = 60'000;  // after something changed
constexpr int64_t kCommandMs = 60'000;
constexpr int64_t kReleaseMs = 10'000;
constexpr int64_t kSoonMs = 30'000;  // a step that ends this soon has a problem
constexpr uint64_t kJobFileBytesMax = 4u << 10;

/// The job id in a file name; 0 if it is not the file of a job.
uint64_t job_of_file(const std::string& name) {
  uint64_t job = 0;
  auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), job);
  return failed == std::errc() && end == name.data() + name.size() ? job : 0;
}

/// A monotonic clock in ms; only durations matter here.
int64_t clock_ms() { return monotonic_us() / 1000; }

slurm::AllocationPoolOptions pool_options(const SlurmOptions& options, const std::string& logs) {
  slurm::AllocationPoolOptions pool;
  pool.nodes = options.nodes;
  pool.min = options.nodes_min;
  pool.max = options.nodes_max;
  pool.idle_ms = options.idle_ms;
  pool.logs = logs;
  return pool;
}

std::string without_end(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

/// The command and its error output.
std::string words_of(const slurm::CommandLine& command, const std::string& answered) {
  return fmt::format("{}\nanswered: {}", slurm::text_of(command),
                     answered.empty() ? "nothing" : without_end(answered));
}

}  // namespace

SlurmAutoscaler::SlurmAutoscaler(const SlurmOptions& options, slurm::WorkerLaunch launch,
                                 std::string inside, AutoscalerCallbacks user)
    : options_(options),
      launch_(std::move(launch)),
      inside_(std::move(inside)),
      user_(std::move(user)),
      pool_(pool_options(options, launch_.folder)) {}

Result<std::unique_ptr<SlurmAutoscaler>> SlurmAutoscaler::start(const SlurmOptions& options,
                                                                const slurm::WorkerLaunch& launch,
                                                                const std::string& inside,
                                                                AutoscalerCallbacks user) {
  std::unique_ptr<SlurmAutoscaler> nodes(
      new SlurmAutoscaler(options, launch, inside, std::move(user)));
  FLOW_TRY(make_dirs(launch.folder));
  FLOW_TRY(write_file_atomic(slurm::script_path(launch), slurm::job_script(options, launch), 0700));
  nodes->adopt_jobs();
  nodes->thread_ = engine_thread([self = nodes.get()] { self->loop(); });
  return nodes;
}

SlurmAutoscaler::~SlurmAutoscaler() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (step_) log::info("Slurm step ended", {.detail = step_text("flow gives its nodes back")});
  step_.reset();
  release_allocations(pool_.jobs(), kReleaseMs);
  write_log();
}

void SlurmAutoscaler::write_log() {
  for (const slurm::PoolLogLine& line : pool_.take_log_lines())
    log::write(line.level, line.message, {.detail = line.detail});
}

std::string SlurmAutoscaler::step_text(const std::string& why) const {
  return fmt::format("job {}: {}", inside_, why);
}

std::string SlurmAutoscaler::job_file(uint64_t job) const {
  return fmt::format("{}/{}.job", launch_.folder, job);
}

// Adopts the jobs of a head that was killed if this head has the same address; otherwise cancels
// them.
void SlurmAutoscaler::adopt_jobs() {
  std::vector<uint64_t> others;
  std::error_code failed;
  for (fs::directory_iterator at(launch_.folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->path().extension() != ".job") continue;
    uint64_t job = job_of_file(at->path().stem().string());
    if (job == 0) continue;  // not a job of this state
    auto text = read_file(at->path().string(), kJobFileBytesMax);
    int32_t nodes = text.ok() ? std::atoi(text->c_str()) : 0;
    bool is_ours = nodes > 0 && text->ends_with(" " + launch_.head) && inside_.empty();
    if (is_ours) {
      pool_.adopt(job, nodes, clock_ms());
    } else {
      others.push_back(job);
    }
  }
  release_allocations(others, kCommandMs);
  write_log();
}

// The next head cancels a job whose file still exists.
void SlurmAutoscaler::release_allocations(const std::vector<uint64_t>& jobs, int64_t within_ms) {
  if (jobs.empty() || !cancel(jobs, within_ms)) return;
  for (uint64_t job : jobs) ::unlink(job_file(job).c_str());
}

void SlurmAutoscaler::loop() {
  std::unique_lock lock(mutex_);
  while (!quit_) {
    lock.unlock();
    turn();
    lock.lock();
    wake_.wait_for(lock, std::chrono::milliseconds(kTurnMs), [this] { return quit_; });
  }
}

void SlurmAutoscaler::turn() {
  if (!inside_.empty()) return keep_step();
  int64_t now = clock_ms();
  if (!pool_.jobs().empty() && now >= poll_at_ms_) poll_jobs();
  slurm::PoolActions steps = pool_.decide(user_.view(), clock_ms());
  for (const std::string& node : steps.drain) user_.drain(node);
  if (!steps.cancel.empty()) cancel(steps.cancel, kCommandMs);
  for (int32_t nodes : steps.requests) request_nodes(nodes);
  report();
}

void SlurmAutoscaler::report() {
  write_log();
  std::vector<std::string> notes = pool_.take_notes();
  std::string status = pool_.status();
  if (status != reported_status_) {
    reported_status_ = status;
    changed_at_ms_ = clock_ms();
    user_.status(status.empty() ? "" : "Slurm: " + status);
  }
  if (pool_.is_final() && !std::exchange(has_reported_final_, true)) user_.on_no_more_nodes();
  auto why = pool_.final_failure();
  if (why && !has_failed_) {
    has_failed_ = true;
    log::warning("Slurm gives no node", {.detail = *why});
    return user_.on_failed(environment_error("Slurm provides no node: " + *why));
  }
  for (const std::string& note : notes) user_.note("Slurm: " + note);
}

void SlurmAutoscaler::poll_jobs() {
  auto answer = run_command(slurm::squeue_command(launch_), kCommandMs);
  bool changes = clock_ms() - changed_at_ms_ < kOftenForMs;
  poll_at_ms_ = clock_ms() + (changes ? kPollOftenMs : kPollSeldomMs);
  std::string problem;
  if (!answer.ok()) {
    problem = answer.error().message;
  } else if (answer->code != 0) {
    problem = without_end(answer->err);
  } else if (auto jobs = slurm::parse_squeue(answer->out); jobs.ok()) {
    std::vector<uint64_t> before = pool_.jobs();
    pool_.polled(*jobs, clock_ms());
    for (uint64_t job : before)
      if (pool_.nodes_of(job) == 0) ::unlink(job_file(job).c_str());
  } else {
    problem = jobs.error().message;
  }
  // A failure of squeue changes nothing: known jobs stay.
  bool is_new = !problem.empty() && problem != squeue_problem_;
  squeue_problem_ = problem;
  if (!is_new) return;
  log::warning("Slurm jobs not polled", {.detail = "squeue: " + problem});
  user_.note("Slurm: squeue does not report the jobs: " + problem);
}

void SlurmAutoscaler::request_nodes(int32_t nodes) {
  slurm::CommandLine command = slurm::sbatch_command(options_, launch_, nodes);
  auto answer = run_command(command, kCommandMs);
  changed_at_ms_ = clock_ms();
  poll_at_ms_ = clock_ms() + kPollOftenMs;
  if (!answer.ok()) {
    const std::string& why = answer.error().message;
    return pool_.rejected(words_of(command, why), slurm::is_transient(why), clock_ms());
  }
  auto job = slurm::parse_sbatch(answer->out);
  if (answer->code != 0 || !job.ok()) {
    std::string answered = answer->err + (answer->code == 0 ? answer->out : "");
    return pool_.rejected(words_of(command, answered), slurm::is_transient(answered), clock_ms());
  }
  // Write the file before anything else, so that the job is never forgotten.
  Status written = write_file_atomic(job_file(*job), fmt::format("{} {}", nodes, launch_.head));
  if (!written.ok()) {
    std::string then = fmt::format("{}: if this head is killed, `scancel {}` ends the job",
                                   written.error().message, *job);
    log::warning("Slurm job not noted", {.detail = then});
    user_.note("Slurm: " + then);
  }
  pool_.requested(*job, nodes, clock_ms());
  user_.note(fmt::format("Slurm: requested {} node{}: job {}", nodes, nodes == 1 ? "" : "s", *job));
}

bool SlurmAutoscaler::cancel(const std::vector<uint64_t>& jobs, int64_t within_ms) {
  slurm::CommandLine command = slurm::scancel_command(jobs);
  auto answer = run_command(command, within_ms);
  poll_at_ms_ = 0;
  if (answer.ok() && (answer->code == 0 || slurm::are_over(answer->err))) {
    pool_.cancelled(jobs);
    return true;
  }
  std::string answered = answer.ok() ? answer->err : answer.error().message;
  log::warning("Slurm jobs not cancelled", {.detail = words_of(command, answered)});
  user_.note("Slurm: jobs that are no longer needed could not be cancelled: " +
             words_of(command, answered) + "; run that command again, or start another head here");
  return false;
}

// Restarts a step that ends, as often as a failed allocation is requested again.
void SlurmAutoscaler::keep_step() {
  int64_t now = clock_ms();
  std::string log_file = slurm::log_path(launch_.folder, inside_);
  if (step_ && step_->is_over()) {
    steps_ended_ = now - step_->began_ms() < kSoonMs ? steps_ended_ + 1 : 1;
    step_.reset();
    step_at_ms_ = now + std::min(slurm::kBackoffFirstMs << std::min(steps_ended_, 20u),
                                 slurm::kBackoffLastMs);
    log::warning("Slurm step ended", {.detail = step_text("its log is `" + log_file + "`")});
    user_.note(
        fmt::format("Slurm: srun in the allocation {} ended; its log is `{}`", inside_, log_file));
  }
  if (step_ || has_failed_ || now < step_at_ms_ || !user_.view().has_work) return;
  std::string why = fmt::format("it ended {} times; its log is `{}`", steps_ended_, log_file);
  slurm::CommandLine command = step_command(launch_, inside_);
  if (steps_ended_ < slurm::kFailuresMax) {
    auto step = SlurmStep::start(command, log_file);
    if (step.ok()) {
      step_ = std::move(*step);
      log::info("Slurm step started", {.detail = step_text("its log is `" + log_file + "`")});
      return;
    }
    why = step.error().message;
  }
  has_failed_ = true;
  std::string problem =
      fmt::format("no workers in the allocation {}: {}", inside_, words_of(command, why));
  log::warning("Slurm gives no node", {.detail = problem});
  user_.on_failed(environment_error(problem));
}

}  // namespace flow
