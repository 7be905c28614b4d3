// flow head: leads a cluster.
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "engine/cli/display/page_options.hpp"
#include "engine/cli/display/run_options.hpp"
#include "engine/cli/verbs/cluster.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace fs = std::filesystem;

namespace {

constexpr const char* kListenDefault = "127.0.0.1:7117";
constexpr int kExpectedMax = 4'096;
constexpr int64_t kClientsWaitMs =
    5'000;  // time for clients to receive the reason before the head ends

struct HeadArguments {
  std::string listen = kListenDefault, secret_file, lost_after;
  int32_t jobs = 0, expect_workers = 0;
  std::vector<std::string> resources;
  bool encrypt = false;
  MetricsOptions metrics;
  PageOptions page;  // `listen` is empty: there is no page
};

/// Workers and their last known states.
class WorkerStatusLog {
 public:
  explicit WorkerStatusLog(const std::vector<NodeInfo>& nodes) { changes(nodes); }
  /// Changes since the last call: one line per new or changed worker.
  std::vector<std::string> changes(const std::vector<NodeInfo>& nodes) {
    std::vector<std::string> lines;
    for (const NodeInfo& node : nodes) {
      if (node.name.empty()) continue;
      bool is_unchanged = std::exchange(known_[node.name], node.status) == node.status;
      if (!is_unchanged) lines.push_back("worker `" + node.name + "` is " + text_of(node));
    }
    return lines;
  }

 private:
  static std::string text_of(const NodeInfo& node) {
    if (node.status == "left") return "gone: it has drained";
    if (node.status == "away") return "away: it may rejoin";
    if (node.status == "lost") return "lost: its tasks run again";
    if (node.status != "up") return node.status;
    std::string text = "up, from " + node.address + ": " + number_text(node.cpus) + " CPUs, " +
                       format_bytes(static_cast<uint64_t>(node.memory_bytes));
    if (!node.gpus.empty()) text += ", " + plural(node.gpus.size(), "GPU");
    return text;
  }

  std::map<std::string, std::string> known_;  // states by name
};

void print_address(const VerbContext& context, const HeadArguments& arguments, const Engine& engine,
                   const std::string& state) {
  std::error_code ignored;
  std::string secret = arguments.secret_file.empty()
                           ? state + "/secret"
                           : fs::absolute(arguments.secret_file, ignored).string();
  const std::string metrics = engine.metrics_address();
  if (context.json) {
    std::string line =
        "{\"address\":" + json_text(engine.address()) + ",\"secret_file\":" + json_text(secret);
    if (!metrics.empty()) line += ",\"metrics\":" + json_text(metrics_url(metrics));
    print_line(line + "}");
  } else {
    print_line("the head of `" + state + "` listens at " + engine.address());
    print_line("workers join it with: flow worker --join " + engine.address() + " --secret-file " +
               secret);
    print_line("runs start on it with: flow run FILE --state " + state +
               ", or from another machine: flow run FILE --head " + engine.address() +
               " --secret-file " + secret);
    if (!metrics.empty()) print_line("its metrics are at " + metrics_url(metrics));
  }
  flush_output();
}

/// Ends with the error that stopped the engine, after clients have received it.
[[noreturn]] void end_with(const std::string& why, const Engine& engine, SignalWait& wait) {
  for (int64_t ms = 0; ms < kClientsWaitMs && engine.client_runs() > 0; ms += kPollMs)
    wait.wait_for(1, kPollMs);
  fail_environment(why);
}

/// Options of the page have no effect without the page.
void check_page(const PageOptions& page) {
  bool has_options = !page.token_name.empty() || !page.tls_certificate.empty() ||
                     !page.tls_key.empty() || !page.keys_file.empty() || !page.hosts.empty();
  if (page.listen.empty() && has_options)
    fail(
        "--token-name, --tls-cert, --tls-key, --keys and --host are options of the page: give "
        "--ui HOST:PORT too");
}

int lead(const VerbContext& context, const HeadArguments& arguments) {
  check_page(arguments.page);
  SignalWait wait;
  EngineOptions options = context.engine();
  options.listen = arguments.listen;
  options.jobs = arguments.jobs;
  options.expected_workers = arguments.expect_workers;
  options.resources = resources_of(arguments.resources);
  options.secret_file = arguments.secret_file;
  options.encrypt = arguments.encrypt;
  options.metrics = arguments.metrics;
  options.lost_after_ms = lost_after_of(arguments.lost_after);
  options.resume_detached = true;
  Engine engine(options);
  if (!engine.is_writer()) {
    fail_environment("the state `" + state_directory(options) +
                     "` already has a writer; `flow nodes` shows it if it is a head. End it, or "
                     "give this head another state with --state.");
  }
  WorkerStatusLog status_log(engine.nodes());
  print_address(context, arguments, engine, state_directory(options));
  std::unique_ptr<Page> page;
  if (!arguments.page.listen.empty()) {
    page = std::make_unique<Page>(context.engine(), arguments.page);
    print_page(*page, context.json);
  }
  while (!wait.wait_for(1, kPollMs)) {
    std::string why = engine.stopped_by();
    if (!why.empty()) end_with(why, engine, wait);
    if (context.json) continue;
    for (const std::string& line : status_log.changes(engine.nodes())) print_note(line);
  }
  return kDone;
}

}  // namespace

void add_head(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<HeadArguments>();
  CLI::App* verb = add_verb(app, context, "head", "lead a cluster, whose workers execute the runs");
  verb->add_option("--listen", arguments->listen,
                   std::string("address to listen on (default: ") + kListenDefault +
                       "); port 0: a free port")
      ->type_name("HOST:PORT");
  verb->add_option("--secret-file", arguments->secret_file,
                   "file with the cluster's secret (default: STATE/secret); created if missing")
      ->type_name("FILE");
  verb->add_option("--jobs,-j", arguments->jobs, "CPU slots of the head's own machine (default: 0)")
      ->type_name("N")
      ->check(whole_number("--jobs", 0, kJobsMax));
  verb->add_option("--expect-workers", arguments->expect_workers,
                   "number of workers that will join; gangs wait for them (default: 0)")
      ->type_name("N")
      ->check(whole_number("--expect-workers", 0, kExpectedMax));
  add_resource_option(verb, arguments->resources);
  verb->add_flag("--encrypt", arguments->encrypt, "encrypt data between head and workers");
  add_lost_after_option(verb, arguments->lost_after);
  add_metrics_options(verb, arguments->metrics);
  verb->add_option("--ui", arguments->page.listen,
                   "also serve the web page of the state, as `flow ui --listen` does")
      ->type_name("HOST:PORT");
  add_page_options(*verb, arguments->page);
  add_log_options(verb, context);
  verb->callback([&context, arguments] {
    context.action = [&context, arguments] { return lead(context, *arguments); };
  });
}

}  // namespace flow::cli
