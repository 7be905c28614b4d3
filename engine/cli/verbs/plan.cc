// flow plan FILE: which tasks would run and why, which are cached. Runs no task.
#include <algorithm>
#include <map>

#include "engine/cli/display/config_options.hpp"
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

void print_json(const PlanInfo& plan) {
  for (const PlanNode& node : plan.nodes) {
    print_line("{\"name\":" + json_text(node.name) + ",\"tag\":" + text_or_null(node.tag) +
               ",\"verdict\":" + json_text(node.verdict) +
               ",\"reason\":" + text_or_null(node.reason) + "}");
  }
}

/// Nodes of one task with the same verdict and cause.
struct PlanRow {
  const PlanNode* first = nullptr;
  std::vector<std::string> names;  // with tags
  bool is_same_reason = true;
};

std::vector<PlanRow> grouped(const std::vector<PlanNode>& nodes, bool each_node) {
  std::vector<PlanRow> rows;
  std::map<std::vector<std::string>, size_t> by_cause;
  for (const PlanNode& node : nodes) {
    std::string name = each_node ? node.name : task_path(node.name);
    auto [found, is_new] =
        by_cause.emplace(std::vector{name, node.verdict, node.cause}, rows.size());
    if (is_new) rows.push_back({&node, {}, true});
    PlanRow& row = rows[found->second];
    row.names.push_back(tagged_name(node.name, node.tag));
    row.is_same_reason = row.is_same_reason && row.first->reason == node.reason;
  }
  return rows;
}

std::string reason_of(const PlanRow& row) {
  if (row.names.size() == 1) return row.first->reason;
  std::string text = plural(row.names.size(), "task") + ": " + row.first->reason;
  if (row.is_same_reason) return text;
  return text + " (this is `" + row.names.front() + "`; of the others the same parts changed)";
}

void print_plan(const PlanInfo& plan, bool verbose) {
  std::vector<std::vector<std::string>> rows;
  for (const PlanRow& row : grouped(plan.nodes, verbose)) {
    std::string reason = reason_of(row);
    rows.push_back({row.first->verdict, joined_names(row.names),
                    verbose ? reason : with_short_digests(reason)});
  }
  print_text(table(rows));
  auto count = [&](const char* verdict) {
    return std::to_string(
        std::count_if(plan.nodes.begin(), plan.nodes.end(),
                      [&](const PlanNode& node) { return node.verdict == verdict; }));
  };
  print_line(plural(plan.nodes.size(), "node") + ": " + count("cached") + " cached, " +
             count("runs") + " to run, " + count("unknown") + " unknown");
}

/// The request that `flow run` with the same options would send to Slurm.
void print_request(const SlurmRequest& request, bool json) {
  if (json)
    return print_line("{\"command\":" + json_text(request.command) +
                      ",\"script\":" + json_text(request.script) + "}");
  print_line("");
  print_line("Slurm would be asked: " + request.command);
  print_line("with the script:");
  print_text(request.script);
}

int explain(const VerbContext& context, const std::string& script, const EngineOptions& engine,
            const RunOptions& options) {
  std::vector<std::string> warnings;
  std::vector<ConfigValue> tasks = explain_config(script, engine, options, warnings);
  for (const std::string& warning : warnings) print_warning(warning);
  print_config(context, tasks);
  return kDone;
}

}  // namespace

void add_plan(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<RunArguments>();
  auto file = std::make_shared<std::string>();
  CLI::App* verb =
      add_verb(app, context, "plan", "preview which tasks would run, and why; runs none");
  verb->add_option("file", *file,
                   "a script, a folder with a pipeline.lua, or - for the standard input")
      ->type_name("FILE|DIR")
      ->required();
  add_parameter_options(verb, *arguments);
  add_jobs_option(verb, *arguments);
  add_resource_option(verb, arguments->resources);
  add_slurm_options(verb, *arguments);
  add_head_options(verb, context);
  add_profile_option(verb, context);
  auto explains = std::make_shared<bool>(false), verbose = std::make_shared<bool>(false);
  verb->add_flag("--explain-config", *explains,
                 "print each option with its value and where it is set, instead of the plan");
  add_verbose_option(verb, *verbose);
  verb->callback([&context, arguments, file, explains, verbose] {
    context.action = [&context, arguments, file, explains, verbose] {
      configure_run(context, *arguments, *file);
      arguments->workers = 0;  // a plan starts none
      RunOptions options = run_options(*arguments);
      options.config = context.config;
      EngineOptions engine = engine_options(context, *arguments);
      engine.resume_detached = false;  // nothing runs
      std::string script = script_path(*file, options);
      if (*explains) return explain(context, script, engine, options);
      PlanInfo plan = context.head.empty() ? Reader(engine).plan(script, options)
                                           : Engine(engine).plan(script, options);
      for (const std::string& line : plan.printed) print_printed(line);
      for (const std::string& warning : plan.warnings) print_warning(warning);
      if (context.json) print_json(plan);
      if (!context.json) print_plan(plan, *verbose);
      if (engine.slurm) print_request(slurm_request(engine), context.json);
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
