#include "engine/cli/display/background.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "engine/cli/display/signals.hpp"
#include "flow/detached.hpp"

namespace flow::cli {

namespace {

/// The fields that the command prints of a run that continues without it.
struct BackgroundRun {
  std::string id, name, pipeline;
  std::vector<ServiceInfo> services;
  int32_t pid = 0;  // 0: a head has the run
  std::string log;
};

void print_json(const BackgroundRun& run) {
  std::string services;
  for (const ServiceInfo& service : run.services)
    services += (services.empty() ? "" : ",") + std::string("{\"service\":") +
                json_text(service.service) + ",\"url\":" + text_or_null(service.url) + "}";
  print_line("{\"run\":" + json_text(run.id) + ",\"name\":" + text_or_null(run.name) +
             ",\"pipeline\":" + json_text(run.pipeline) + ",\"services\":[" + services +
             "],\"pid\":" + (run.pid == 0 ? "null" : std::to_string(run.pid)) +
             ",\"log\":" + text_or_null(run.log) + "}");
}

void print_left(const VerbContext& context, const BackgroundRun& run) {
  if (context.json) return print_json(run);
  if (context.quiet) return;
  for (const ServiceInfo& service : run.services)
    print_line(service.service + " serves at " + service.url);
  std::string where = run.pid == 0 ? "at its head"
                                   : "in the background (process " + std::to_string(run.pid) +
                                         ", log " + run.log + ")";
  print_line("it continues " + where + "; `flow stop " + run.id + context.head_option() +
             "` ends it");
}

void print_kept(const VerbContext& context, const BackgroundRun& run) {
  if (context.json) return print_json(run);
  if (context.quiet) return;
  print_line("the canary has ended: `" + run.name + "` is served by the run " + run.id +
             ", as before");
}

/// The head that has the run's state and continues without this command.
bool has_head(const VerbContext& context) {
  if (!context.head.empty()) return true;
  try {
    return !cluster_info(context.engine()).address.empty();
  } catch (const Failed&) {
    return false;  // no process writes the state, or none that answers: the command will say so
  }
}

void print_start(const VerbContext& context, const BackgroundRun& run) {
  if (context.json || context.quiet) return;
  print_line("run " + run.id + " of " + run.pipeline);
  flush_output();
}

/// The path of this program; if its file was replaced, what the kernel still has of it.
std::string own_program() {
  constexpr const char* kSelf = "/proc/self/exe";
  std::error_code failed;
  std::string path = std::filesystem::read_symlink(kSelf, failed).string();
  return failed || path.ends_with(" (deleted)") ? kSelf : path;
}

int follow(DetachedProgram& program, const VerbContext& context) {
  BackgroundRun run;
  while (std::optional<DetachedReport> report = program.next()) {
    if (report->type == "started") {
      run = {report->run, report->name, report->pipeline, {}, report->pid, report->log};
      print_start(context, run);
    } else if (report->type == "warning") {
      print_warning(report->text);
    } else if (report->type == "error") {
      print_error(report->text);
    } else if (report->type == "serving") {
      run.services = std::move(report->services);
      print_left(context, run);
      return kDone;
    } else if (report->type == "kept") {
      print_kept(context, BackgroundRun{report->run, report->name, report->pipeline,
                                        std::move(report->services), 0, ""});
      return kDone;
    } else if (report->type == "ended") {
      if (context.json && !run.id.empty()) print_json(run);
      return report->exit_code;
    }
  }
  print_error(run.id.empty() ? "the process in the background ended before it had created the run."
                             : "the process in the background has died. `flow resume " + run.id +
                                   "` continues the run; the log is " + run.log + ".");
  return kUnreachable;
}

std::unique_ptr<DetachedReporter>& reporter() {
  static std::unique_ptr<DetachedReporter> taken;
  return taken;
}

std::string log_path(const VerbContext& context) {
  return state_directory(context.engine()) + "/detached.log";
}

std::string& background_log() {
  static std::string path;
  return path;
}

}  // namespace

std::optional<int> run_in_background(const VerbContext& context, const RunArguments& arguments,
                                     std::unique_ptr<Interrupts>& interrupts, RunOptions& options) {
  if (is_background()) options.detached = true;  // if another process writes the state
  if (!arguments.detach || is_background()) return std::nullopt;
  if (has_head(context)) {
    if (!arguments.out.empty())
      fail(
          "--out copies the result when the run has ended, and with --detach this command ends "
          "before: leave --out out, and copy with `flow get RUN -o DIR`.");
    options.detached = true;
    return std::nullopt;
  }
  // From here on Ctrl-C leaves the run to the background.
  interrupts.reset();
  set_exit_code(kInterrupted);
  DetachedProgram program(own_program(), context.words);
  return follow(program, context);
}

void keep_left_runs(const VerbContext& context, const RunArguments& arguments) {
  if (is_background() || !context.head.empty() || !arguments.on.empty()) return;
  EngineOptions state = context.engine();
  std::error_code failed;
  // Neither means that no run has been left by the process that executed it.
  std::string directory = state_directory(state);
  bool may_have_some = std::filesystem::exists(directory + "/detached.log", failed) ||
                       std::filesystem::exists(directory + "/fronts", failed);
  if (!may_have_some) return;
  std::vector<std::string> left = Reader(state).left_runs();
  if (left.empty()) return;
  std::vector<std::string> words = {"resume", left.front(), "--detach", "--state", directory};
  auto add = [&](const char* option, const std::string& value) {
    words.insert(words.end(), {option, value});
  };
  if (arguments.jobs > 0) add("--jobs", std::to_string(arguments.jobs));
  if (arguments.workers > 0) add("--workers", std::to_string(arguments.workers));
  if (arguments.encrypt) words.emplace_back("--encrypt");
  if (!arguments.lost_after.empty()) add("--lost-after", arguments.lost_after);
  for (const std::string& resource : arguments.resources) add("--resource", resource);
  DetachedProgram program(own_program(), words);
  // It has resumed the others too when it reports its own run.
  while (std::optional<DetachedReport> report = program.next()) {
    if (report->type == "warning") print_warning(report->text);
    if (report->type == "error")
      print_warning("the run " + left.front() + " is not resumed: " + report->text);
    if (report->type == "started" || report->type == "ended") return;
  }
}

void print_left(const VerbContext& context, const RunInfo& run) {
  BackgroundRun left{run.id, run.name, run.pipeline, run.services, 0, ""};
  print_start(context, left);
  print_left(context, left);
}

void print_kept(const VerbContext& context, const RunInfo& run) {
  if (!is_background())
    return print_kept(context, BackgroundRun{run.id, run.name, run.pipeline, run.services, 0, ""});
  DetachedReport report;
  report.type = "kept";
  report.run = run.id;
  report.name = run.name;
  report.pipeline = run.pipeline;
  report.services = run.services;
  reporter()->send(report);
}

void take_background() { reporter() = DetachedReporter::take(); }

bool is_background() { return reporter() != nullptr; }

void enter_background(const VerbContext& context) {
  if (!is_background()) return;
  background_log() = log_path(context);
  reporter()->redirect(background_log());
  set_message_listener([](const std::string& type, const std::string& text) {
    DetachedReport report;
    report.type = type;
    report.text = text;
    reporter()->send(report);
  });
}

void report_start(const RunInfo& run) {
  if (!is_background()) return;
  DetachedReport report;
  report.type = "started";
  report.run = run.id;
  report.name = run.name;
  report.pipeline = run.pipeline;
  report.pid = getpid();
  report.log = background_log();
  reporter()->send(report);
}

void report_services(const RunInfo& run) {
  if (!is_background()) return;
  DetachedReport report;
  report.type = "serving";
  report.services = run.services;
  reporter()->send(report);
}

void report_end(int exit_code) {
  if (!is_background()) return;
  DetachedReport report;
  report.type = "ended";
  report.exit_code = exit_code;
  reporter()->send(report);
}

bool is_ready(const RunInfo& run) {
  if (run.finished_ms != 0) return false;
  const std::string& rollover = run.rollover.phase;
  if (!rollover.empty() && rollover != "done") return false;  // a gate of its canary may be at work
  auto listens = [](const ServiceInfo& service) { return !service.url.empty(); };
  if (!std::ranges::all_of(run.services, listens)) return false;
  if (run.services.empty() || run.status == "serving") return true;
  uint64_t open =
      uint64_t{run.counts.pending} + run.counts.ready + run.counts.running + run.counts.waiting;
  uint64_t replicas = 0;
  for (const ServiceInfo& service : run.services) replicas += service.replicas.size();
  return open > replicas;
}

}  // namespace flow::cli
