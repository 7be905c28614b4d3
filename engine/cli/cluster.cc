// flow head, flow worker, flow nodes: a cluster of machines.
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <sstream>

#include "engine/cli/run_options.hpp"
#include "engine/cli/signals.hpp"
#include "engine/cli/verbs.hpp"

namespace flow::cli {

namespace fs = std::filesystem;

namespace {

constexpr const char* kListenDefault = "127.0.0.1:7117";

/// Until a signal comes, or `ended` is told.
class Wait {
 public:
  Wait() : signals_([this](int) { end(); }) {}
  void end() {
    std::lock_guard lock(mutex_);
    is_over_ = true;
    over_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    over_.wait(lock, [this] { return is_over_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  Signals signals_;
};

struct HeadArguments {
  std::string listen = kListenDefault, secret_file;
  int32_t jobs = 0;
};

int lead(const Session& session, const HeadArguments& arguments) {
  EngineOptions options = session.engine();
  options.listen = arguments.listen;
  options.jobs = arguments.jobs;
  options.secret_file = arguments.secret_file;
  Wait wait;
  Engine engine(options);
  if (!engine.is_writer()) {
    fail_environment(
        "the state `" + state_directory(options) +
        "` has a writer already, which `flow nodes` shows where it is a head. End that "
        "one, or give this head another state with --state.");
  }
  std::string secret = arguments.secret_file.empty() ? state_directory(options) + "/secret"
                                                     : fs::absolute(arguments.secret_file).string();
  if (session.json) {
    print_line("{\"address\":" + json_text(engine.address()) +
               ",\"secret_file\":" + json_text(secret) + "}");
  } else {
    print_line("the head of `" + state_directory(options) + "` listens at " + engine.address());
    print_line("workers join it with: flow worker --join " + engine.address() + " --secret-file " +
               secret);
    print_line("runs start on it with: flow run FILE --state " + state_directory(options));
  }
  flush_output();
  wait.wait();
  return kDone;
}

struct WorkerArguments {
  std::string join, secret_file, name, dir, memory, content_max;
  int32_t jobs = 0;
  std::vector<std::string> labels;
  bool show = false, until_eof = false;
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
  options.memory = arguments.memory;
  options.content_max = arguments.content_max;
  options.directory = arguments.dir;
  return options;
}

std::string cpus_text(double cpus) {
  std::string text = std::to_string(cpus);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

void print_node(const NodeInfo& node) {
  print_line("name    " + node.name);
  print_line("cpus    " + cpus_text(node.cpus));
  print_line("memory  " + format_bytes(static_cast<uint64_t>(node.memory_bytes)));
  if (node.gpus.empty()) print_line("gpus    none");
  for (const Gpu& gpu : node.gpus)
    print_line("gpu     " + gpu.uuid + "  " + gpu.name + "  " +
               format_bytes(static_cast<uint64_t>(gpu.memory_bytes)) +
               (gpu.numa < 0 ? "" : "  NUMA node " + std::to_string(gpu.numa)));
  for (const auto& [name, value] : node.labels) print_line("label   " + name + "=" + value);
}

/// The head on this machine closes its end when it dies.
void end_with_stdin(Wait& wait) {
  begin_thread([&wait] {
    char byte;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    wait.end();
  }).detach();
}

int work(const Session& session, const WorkerArguments& arguments) {
  if (arguments.show) {
    NodeInfo node = describe_worker(node_options(arguments));
    if (session.json) {
      print_line(node.json());
    } else {
      print_node(node);
    }
    return kDone;
  }
  if (arguments.join.empty())
    fail(
        "`flow worker` needs --join HOST:PORT, where its head listens: `flow head` prints it. "
        "`flow worker --show` prints what this machine would bring.");
  if (arguments.secret_file.empty())
    fail(
        "`flow worker` needs --secret-file FILE, the cluster's secret: `flow head` makes it and "
        "prints where. Copy it to this machine, readable by you alone.");
  WorkerNodeOptions options = node_options(arguments);
  options.on_note = [](const std::string& text) {
    print_line(local_time(now_ms()) + "  " + text);
    flush_output();
  };
  Wait wait;
  if (arguments.until_eof) end_with_stdin(wait);
  WorkerNode node(options);
  wait.wait();
  return kDone;
}

std::vector<std::string> row_of(const NodeInfo& node) {
  return {node.name.empty() ? "(head)" : node.name,
          node.status,
          cpus_text(node.cpus_used) + "/" + cpus_text(node.cpus) + " CPUs",
          format_bytes(static_cast<uint64_t>(node.memory_bytes)),
          node.gpus.empty() ? "" : plural(node.gpus.size(), "GPU"),
          node.address};
}

/// A line a machine, and below it what runs there.
int list_nodes(const Session& session) {
  ClusterInfo cluster = cluster_info(session.engine());
  std::vector<std::vector<std::string>> rows;
  for (const NodeInfo& node : cluster.nodes) {
    if (session.json) {
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
  }
  return kDone;
}

}  // namespace

void add_head(CLI::App& app, Session& session) {
  auto arguments = std::make_shared<HeadArguments>();
  CLI::App* verb = add_verb(app, session, "head", "lead a cluster: workers join, runs run on them");
  verb->add_option("--listen", arguments->listen,
                   std::string("where workers join (") + kListenDefault + "); port 0 is chosen")
      ->type_name("HOST:PORT");
  verb->add_option("--secret-file", arguments->secret_file,
                   "the cluster's secret (STATE/secret); made where there is none")
      ->type_name("FILE");
  verb->add_option("--jobs,-j", arguments->jobs, "CPU slots of the head's own machine (0)")
      ->type_name("N")
      ->check(whole_number("--jobs", 0, kJobsMax));
  verb->callback([&session, arguments] {
    session.action = [&session, arguments] { return lead(session, *arguments); };
  });
}

void add_worker(CLI::App& app, Session& session) {
  auto arguments = std::make_shared<WorkerArguments>();
  CLI::App* verb = add_verb(app, session, "worker", "work for a cluster's head");
  verb->add_option("--join", arguments->join, "where the head listens")->type_name("HOST:PORT");
  verb->add_option("--secret-file", arguments->secret_file, "the cluster's secret")
      ->type_name("FILE");
  verb->add_option("--name", arguments->name, "in the cluster (this machine's name)")
      ->type_name("NAME");
  verb->add_option("--dir", arguments->dir,
                   "for scratch, content and what the head has not taken (below /var/tmp)")
      ->type_name("DIR");
  verb->add_option("--memory", arguments->memory, "that attempts may have (the machine's)")
      ->type_name("SIZE");
  verb->add_option("--content-max", arguments->content_max,
                   "of inputs and results that it may keep (no limit)")
      ->type_name("SIZE");
  verb->add_option("--label", arguments->labels, "a label; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  verb->add_option("--jobs,-j", arguments->jobs,
                   "CPU slots (default: the CPUs this process may use)")
      ->type_name("N")
      ->check(whole_number("--jobs", 1, kJobsMax));
  verb->add_flag("--show", arguments->show, "print what this machine has, and end");
  verb->add_flag("--until-eof", arguments->until_eof, "end when the standard input does");
  verb->callback([&session, arguments] {
    session.action = [&session, arguments] { return work(session, *arguments); };
  });
}

void add_nodes(CLI::App& app, Session& session) {
  CLI::App* verb = add_verb(app, session, "nodes", "list a cluster's machines and what runs there");
  verb->callback([&session] { session.action = [&session] { return list_nodes(session); }; });
}

}  // namespace flow::cli
