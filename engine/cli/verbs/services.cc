// flow serve, flow deploy, flow rollback, flow stop and flow services.
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "engine/cli/display/background.hpp"
#include "engine/cli/display/config_options.hpp"
#include "engine/cli/display/watch.hpp"
#include "engine/cli/verbs/cluster.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

using StartRun = std::function<Run(Engine& engine, const RunOptions& options)>;

/// The runs with services that are active.
std::set<std::string> serving_runs(Engine& engine) {
  std::set<std::string> runs;
  for (const ServiceInfo& service : engine.services()) runs.insert(service.version);
  return runs;
}

/// Starts a run by `start` and shows it, here or in the background.
int serve(VerbContext& context, RunArguments& arguments, const StartRun& start,
          bool rolls_back = false) {
  auto interrupts = std::make_unique<Interrupts>();
  configure_verb(context, arguments.workers == 0 && arguments.on.empty());
  RunOptions options = run_options(arguments);
  if (auto code = run_in_background(context, arguments, interrupts, options)) return *code;
  EngineOptions requested = engine_options(context, arguments);
  keep_left_runs(context, arguments);
  Engine engine(requested);
  enter_background(context);
  std::set<std::string> before = rolls_back ? serving_runs(engine) : std::set<std::string>();
  Run run = start(engine, options);
  if (before.contains(run.id())) {  // the rollback has ended the canary of another version
    print_kept(context, run.summary());
    return kDone;
  }
  WatchOptions watched{options.grace_ms, "", arguments.strict, options.detached};
  return watch(engine, run, context, watched, *interrupts);
}

/// Sets the action of `serve` and `deploy`.
void serve_run(VerbContext& context, const std::shared_ptr<RunArguments>& arguments,
               const std::shared_ptr<std::string>& selector) {
  context.action = [&context, arguments, selector] {
    return serve(context, *arguments, [&](Engine& engine, const RunOptions& options) {
      return engine.serve(*selector, options);
    });
  };
}

CLI::App* add_serving_verb(CLI::App& app, VerbContext& context, RunArguments& arguments,
                           const std::string& name, const std::string& what) {
  CLI::App* verb = add_verb(app, context, name, what);
  add_rerun_options(verb, context, arguments);
  add_detach_option(verb, arguments);
  return verb;
}

/// "2/3 replicas": those that answer requests, of those that there shall be. "2 of 1..8 replicas"
/// if their number follows the load, and "1/2 of 1..8 replicas" while one of them starts.
std::string replicas_text(const ServiceInfo& service) {
  auto ready = std::ranges::count_if(service.replicas, [](const ReplicaInfo& replica) {
    return replica.status == "ready" || replica.status == "busy";
  });
  if (service.replicas_max == service.replicas_min)
    return std::to_string(ready) + "/" + plural(service.replicas.size(), "replica");
  bool are_all_ready = ready == static_cast<int64_t>(service.replicas_wanted);
  return (are_all_ready ? "" : std::to_string(ready) + "/") + scaled_replicas_text(service) +
         " replicas";
}

std::string latency_text(int64_t us) {
  char text[32];
  std::snprintf(text, sizeof text, us < 10'000 ? "%.2fms" : "%.0fms",
                static_cast<double>(us) / 1000);
  return text;
}

/// Whether the front answers requests, and whether anything keeps it going.
std::string state_text(const ServiceInfo& service, const ServiceTraffic& traffic) {
  if (traffic.is_draining) return "draining";
  if (!traffic.is_ready) return "not ready";
  return service.status == "interrupted" ? "interrupted, answers for its --front-lease" : "ready";
}

std::vector<std::string> row_of(const ServiceInfo& service) {
  std::string name = service.name.empty() ? service.service : service.name + "/" + service.service;
  std::vector<std::string> row = {name, service.version, service.url.empty() ? "-" : service.url,
                                  replicas_text(service)};
  if (!service.traffic) {
    row.insert(row.end(), {"-", "-", "no answer from its front"});
    return row;
  }
  const ServiceTraffic& traffic = *service.traffic;
  char rate[32];
  std::snprintf(rate, sizeof rate, "%.1f/s", traffic.requests_per_second);
  std::string state = state_text(service, traffic);
  if (traffic.errors > 0) state += ", " + plural(traffic.errors, "error");
  if (traffic.refused > 0) state += ", " + std::to_string(traffic.refused) + " refused";
  row.insert(row.end(), {std::to_string(traffic.percent) + "%", rate,
                         "p50 " + latency_text(traffic.p50_us) + ", p99 " +
                             latency_text(traffic.p99_us) + ", " + state});
  return row;
}

std::vector<std::string> row_of(const ReplicaInfo& replica) {
  std::string gpus;
  for (const std::string& gpu : replica.gpus) gpus += (gpus.empty() ? "" : ", ") + gpu;
  return {"    " + replica.name, replica.status,
          replica.pid == 0 ? "" : "process " + std::to_string(replica.pid), replica.worker, gpus};
}

/// One line per service, and below it one per replica.
int list_services(const VerbContext& context) {
  std::vector<ServiceInfo> services = context.head.empty() ? Reader(context.engine()).services()
                                                           : Engine(context.engine()).services();
  std::vector<std::vector<std::string>> rows, replicas;
  for (const ServiceInfo& service : services) {
    if (context.json) {
      print_line(service.json());
      continue;
    }
    rows.push_back(row_of(service));
    for (const ReplicaInfo& replica : service.replicas) replicas.push_back(row_of(replica));
  }
  std::istringstream lines(table(rows)), replica_lines(table(replicas));
  std::string line;
  for (size_t i = 0; std::getline(lines, line); i++) {
    print_line(line);
    for (size_t n = 0; n < services[i].replicas.size() && std::getline(replica_lines, line); n++)
      print_line(line);
    if (!services[i].access_log.empty()) print_line("    access log " + services[i].access_log);
    if (!services[i].not_resumed.empty())
      print_line("    its run is not resumed: " + services[i].not_resumed);
    else if (services[i].status == "interrupted")
      print_line("    no process executes its run: `flow resume " + services[i].version +
                 context.head_option() + "` continues it");
  }
  return kDone;
}

}  // namespace

void add_serve(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<RunArguments>();
  auto selector = std::make_shared<std::string>();
  CLI::App* verb = add_serving_verb(app, context, *arguments, "serve",
                                    "serve the services of a run again, as a new run");
  add_run_argument(verb, *selector, true);
  verb->callback([&context, arguments, selector] { serve_run(context, arguments, selector); });
}

void add_deploy(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<RunArguments>();
  auto selector = std::make_shared<std::string>();
  CLI::App* verb = add_serving_verb(app, context, *arguments, "deploy",
                                    "serve a run under a name, replacing its current version");
  add_run_argument(verb, *selector, true);
  verb->add_option("--name", arguments->name, "the name under which the services are served")
      ->type_name("NAME");
  verb->callback([&context, arguments, selector] {
    if (arguments->name.empty())
      fail("`flow deploy` needs --name NAME, the name under which the services are served.");
    serve_run(context, arguments, selector);
  });
}

void add_rollback(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<RunArguments>();
  auto name = std::make_shared<std::string>();
  CLI::App* verb = add_serving_verb(app, context, *arguments, "rollback",
                                    "serve the version before the one that a name serves");
  verb->add_option("name", *name, "a name that is served")->type_name("NAME")->required();
  verb->callback([&context, arguments, name] {
    context.action = [&context, arguments, name] {
      return serve(
          context, *arguments,
          [&](Engine& engine, const RunOptions& options) {
            return engine.rollback(*name, options);
          },
          true);
    };
  });
}

void add_stop(CLI::App& app, VerbContext& context) {
  auto selector = std::make_shared<std::string>();
  auto grace = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "stop",
                            "end a run as Ctrl-C does: drain its services, save its tasks");
  add_run_argument(verb, *selector, true);
  verb->add_option("--grace", *grace,
                   "kill what still runs after this time (default: the run's own --grace)")
      ->type_name("TIME");
  add_head_options(verb, context);
  verb->callback([&context, selector, grace] {
    context.action = [&context, selector, grace] {
      int64_t within_ms = grace->empty() ? -1 : parse_duration("--grace", *grace);
      find_run(context, *selector);
      for (const RunInfo& run : Engine(context.engine()).stop(*selector, within_ms)) {
        if (context.json) {
          print_line("{\"run\":" + json_text(run.id) + ",\"status\":" + json_text(run.status) +
                     "}");
        } else {
          print_line("stopped " + run.id + ": " + run.status);
        }
      }
      return int{kDone};
    };
  });
}

void add_services(CLI::App& app, VerbContext& context) {
  CLI::App* verb =
      add_verb(app, context, "services", "list what is served, with its traffic and replicas");
  add_head_options(verb, context);
  verb->callback([&context] { context.action = [&context] { return list_services(context); }; });
}

}  // namespace flow::cli
