// flow worker, flow nodes: the workers of a cluster.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "engine/cli/display/run_options.hpp"
#include "engine/cli/verbs/cluster.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

constexpr int64_t kDrainMs = 30'000, kAloneMsMin = 1'000;

struct WorkerArguments {
  std::string join, secret_file, name, dir, memory, content_max, drain, head_timeout;
  int32_t jobs = 0;
  std::vector<std::string> labels, resources;
  bool show = false, until_eof = false;
  MetricsOptions metrics;
};

std::vector<std::pair<std::string, std::string>> labels_of(const WorkerArguments& arguments) {
  std::vector<std::pair<std::string, std::string>> labels;
  for (const std::string& text : arguments.labels) {
    size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      fail("--label takes NAME=VALUE, not `" + text + "`. Write for example `--label rack=a`.");
    labels.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return labels;
}

WorkerNodeOptions node_options(const WorkerArguments& arguments) {
  WorkerNodeOptions options;
  options.head = arguments.join;
  options.secret_file = arguments.secret_file;
  options.name = arguments.name;
  options.jobs = arguments.jobs;
  options.labels = labels_of(arguments);
  options.resources = resources_of(arguments.resources);
  options.memory = arguments.memory;
  options.content_max = arguments.content_max;
  options.directory = arguments.dir;
  options.metrics = arguments.metrics;
  return options;
}

void print_node(const NodeInfo& node) {
  print_line("name    " + node.name);
  print_line("cpus    " + number_text(node.cpus));
  print_line("memory  " + format_bytes(static_cast<uint64_t>(node.memory_bytes)));
  if (node.gpus.empty()) print_line("gpus    none");
  for (const Gpu& gpu : node.gpus)
    print_line("gpu     " + gpu.uuid + "  " + gpu.name + "  " +
               format_bytes(static_cast<uint64_t>(gpu.memory_bytes)) +
               (gpu.is_mig ? "  MIG instance of GPU " + std::to_string(gpu.index) : "") +
               (gpu.numa < 0 ? "" : "  NUMA node " + std::to_string(gpu.numa)) +
               (gpu.nvlink < 0 ? "" : "  NVLink " + std::to_string(gpu.nvlink)) +
               (gpu.fabric.empty() ? "" : "  fabric " + gpu.fabric));
  for (const auto& [name, value] : node.labels) print_line("label   " + name + "=" + value);
  for (const auto& [name, amount] : node.resources)
    print_line("resource " + name + "=" + number_text(amount));
}

/// The pipe from the process that started this worker closes when that process dies.
void end_with_stdin(SignalWait& wait) {
  begin_thread([&wait] {
    char byte;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    wait.end();
  }).detach();
}

/// Waits until all attempts have ended, the time is over, or a second signal arrives.
void drain(WorkerNode& node, SignalWait& wait, int64_t within_ms,
           const std::function<void(const std::string&)>& note) {
  constexpr int64_t kPauseMs = 20;
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(within_ms);
  const char* job = std::getenv("SLURM_JOB_ID");
  node.drain(within_ms, job == nullptr
                            ? "it was asked to end"
                            : std::string("it was asked to end: the Slurm job ") + job +
                                  " is near its time limit (`--time`), or was cancelled");
  if (!node.is_drained())
    note("leaving: running tasks have " + format_duration(within_ms) +
         " to save their state; send the signal again to end them now");
  while (!node.is_drained() && std::chrono::steady_clock::now() < until &&
         !wait.wait_for(2, kPauseMs)) {
  }
}

int work(const VerbContext& context, const WorkerArguments& arguments) {
  if (arguments.show) {
    NodeInfo node = describe_worker(node_options(arguments));
    if (context.json) {
      print_line(node.json());
    } else {
      print_node(node);
    }
    return kDone;
  }
  if (arguments.join.empty())
    fail(
        "`flow worker` needs --join HOST:PORT, the address of its head: `flow head` prints it. "
        "`flow worker --show` prints what this machine would offer.");
  if (arguments.secret_file.empty())
    fail(
        "`flow worker` needs --secret-file FILE, the cluster's secret: `flow head` creates it and "
        "prints its path. Copy it to this machine, readable only by you.");
  WorkerNodeOptions options = node_options(arguments);
  options.log = context.log();
  options.on_note = print_note;
  SignalWait wait(SIGUSR2);  // batch systems send it before their time limit
  if (arguments.until_eof) end_with_stdin(wait);
  int64_t drain_ms = kDrainMs, alone_max_ms = INT64_MAX;
  if (!arguments.drain.empty()) drain_ms = parse_duration("--drain", arguments.drain);
  if (!arguments.head_timeout.empty())
    alone_max_ms = parse_duration("--head-timeout", arguments.head_timeout);
  if (alone_max_ms < kAloneMsMin)
    fail("--head-timeout is " + format_duration(kAloneMsMin) + " or more, not `" +
         arguments.head_timeout + "`: a worker needs time to find its head.");
  WorkerNode node(options);
  if (!node.metrics_address().empty())
    options.on_note("metrics are at " + metrics_url(node.metrics_address()));
  while (!wait.wait_for(1, kPollMs)) {
    if (node.without_head_ms() < alone_max_ms) continue;
    options.on_note("there has been no head for " + format_duration(alone_max_ms) +
                    ", the limit of this worker (--head-timeout)");
    return kDone;
  }
  if (!wait.wait_for(2, 0)) drain(node, wait, drain_ms, options.on_note);
  return kDone;
}

/// "fpga 1/2, licence 0/1"
std::string resources_text(const NodeInfo& node) {
  std::string text;
  for (const auto& [name, amount] : node.resources) {
    double used = 0;
    for (const auto& [each, number] : node.resources_used)
      if (each == name) used = number;
    text += (text.empty() ? "" : ", ") + name + " " + number_text(used) + "/" + number_text(amount);
  }
  return text;
}

/// "1.5/2 GPUs"
std::string gpus_text(const NodeInfo& node) {
  if (node.gpus.empty()) return "";
  std::string all = plural(node.gpus.size(), "GPU");
  if (node.gpu_uses.empty()) return all;
  double used = 0;
  for (const GpuUse& use : node.gpu_uses) used += use.used;
  return number_text(used) + "/" + all;
}

/// "; 45% busy, 61 C, 250 W, 3 s ago", as far as it is measured.
std::string reading_text(const GpuReading* reading) {
  constexpr double kPercent = 100;
  if (reading == nullptr) return "";
  std::string text;
  auto add = [&](double number, const char* unit) {
    text += (text.empty() ? "; " : ", ") + std::to_string(std::lround(number)) + unit;
  };
  if (reading->utilisation) add(*reading->utilisation * kPercent, "% busy");
  if (reading->temperature_celsius) add(*reading->temperature_celsius, " C");
  if (reading->power_watts) add(*reading->power_watts, " W");
  if (!text.empty()) add(reading->age_s, " s ago");
  return text;
}

/// "GPU 0  NVIDIA H200  GPU-a  0.5/1, 10.0 GiB/140.0 GiB: RUN TASK, RUN TASK", one line per GPU.
std::vector<std::vector<std::string>> gpu_rows(const NodeInfo& node) {
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < std::min(node.gpus.size(), node.gpu_uses.size()); i++) {
    const Gpu& gpu = node.gpus[i];
    const GpuUse& use = node.gpu_uses[i];
    std::string text = use.used > 0        ? number_text(use.used) + "/1"
                       : gpu.fault.empty() ? "free"
                                           : "failed";
    if (use.memory_used_bytes > 0)
      text += ", " + format_bytes(static_cast<uint64_t>(use.memory_used_bytes)) + "/" +
              format_bytes(static_cast<uint64_t>(gpu.memory_bytes));
    for (size_t task = 0; task < use.tasks.size(); task++)
      text += (task == 0 ? ": " : ", ") + use.tasks[task];
    text += reading_text(node.reading_of(gpu));
    rows.push_back({(gpu.is_mig ? "MIG of GPU " : "GPU ") + std::to_string(gpu.index), gpu.name,
                    gpu.uuid, text});
  }
  return rows;
}

std::vector<std::string> row_of(const NodeInfo& node) {
  return {node.name.empty() ? "(head)" : node.name,
          node.status,
          number_text(node.cpus_used) + "/" + number_text(node.cpus) + " CPUs",
          format_bytes(static_cast<uint64_t>(node.memory_bytes)),
          gpus_text(node),
          resources_text(node),
          node.address};
}

/// "" if nothing was transferred.
std::string moved_text(const NodeInfo& node) {
  auto part = [](const BlobTraffic& moved, const char* where) {
    if (moved.blobs == 0) return std::string();
    return ", " + format_bytes(moved.bytes) + " (" + std::to_string(moved.blobs) + ") " + where;
  };
  std::string text = part(node.from_head, "from the head") +
                     part(node.from_workers, "from workers") + part(node.to_workers, "to workers");
  return text.empty() ? "" : "content: " + text.substr(2);
}

/// Prints one line per machine, followed by its tasks, the users of its GPUs, and faults.
int list_nodes(const VerbContext& context) {
  ClusterInfo cluster = cluster_info(context.engine());
  std::vector<std::vector<std::string>> rows;
  for (const NodeInfo& node : cluster.nodes) {
    if (context.json) {
      print_line(node.json());
    } else {
      rows.push_back(row_of(node));
    }
  }
  std::istringstream lines(table(rows));
  std::string line;
  for (size_t i = 0; std::getline(lines, line); i++) {
    print_line(line);
    for (const std::string& task : cluster.nodes[i].tasks) print_line("    " + task);
    std::istringstream gpus(table(gpu_rows(cluster.nodes[i])));
    for (std::string gpu; std::getline(gpus, gpu);) print_line("    " + gpu);
    if (!cluster.nodes[i].note.empty()) print_line("    " + cluster.nodes[i].note);
    for (const Gpu& gpu : cluster.nodes[i].gpus)
      if (!gpu.fault.empty()) print_line("    " + fault_text(cluster.nodes[i], gpu));
    std::string moved = moved_text(cluster.nodes[i]);
    if (!moved.empty()) print_line("    " + moved);
  }
  return kDone;
}

}  // namespace

void add_worker(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<WorkerArguments>();
  CLI::App* verb = add_verb(app, context, "worker", "work for a cluster's head");
  verb->add_option("--join", arguments->join, "address of the head")->type_name("HOST:PORT");
  verb->add_option("--secret-file", arguments->secret_file, "file with the cluster's secret")
      ->type_name("FILE");
  verb->add_option("--name", arguments->name, "name in the cluster (default: this machine's name)")
      ->type_name("NAME");
  verb->add_option("--dir", arguments->dir,
                   "folder for scratch, blobs and reports that the head has not received "
                   "(default: below /var/tmp)")
      ->type_name("DIR");
  verb->add_option("--memory", arguments->memory,
                   "memory for attempts, e.g. 64GiB (default: all of the machine)")
      ->type_name("SIZE");
  verb->add_option("--content-max", arguments->content_max,
                   "maximum size of kept inputs and results (default: no limit)")
      ->type_name("SIZE");
  verb->add_option("--label", arguments->labels, "label of this worker; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  add_resource_option(verb, arguments->resources);
  verb->add_option("--jobs,-j", arguments->jobs,
                   "CPU slots (default: the CPUs this process may use)")
      ->type_name("N")
      ->check(whole_number("--jobs", 1, kJobsMax));
  verb->add_option("--drain", arguments->drain,
                   "time to save after SIGTERM (default: 30s); a second SIGTERM ends it at once")
      ->type_name("TIME");
  verb->add_option("--head-timeout", arguments->head_timeout,
                   "exit after this long without a head (default: never)")
      ->type_name("TIME");
  add_metrics_options(verb, arguments->metrics);
  add_log_options(verb, context);
  verb->add_flag("--show", arguments->show, "print the resources of this machine and exit");
  verb->add_flag("--until-eof", arguments->until_eof, "exit when the standard input ends");
  verb->callback([&context, arguments] {
    context.action = [&context, arguments] { return work(context, *arguments); };
  });
}

void add_nodes(CLI::App& app, VerbContext& context) {
  CLI::App* verb = add_verb(app, context, "nodes", "list a cluster's machines and their tasks");
  add_head_options(verb, context);
  verb->callback([&context] { context.action = [&context] { return list_nodes(context); }; });
}

}  // namespace flow::cli
