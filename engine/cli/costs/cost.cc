// flow cost [RUN] [--since T] [--by task|user|queue|gpu]
#include "engine/cli/costs/cost_verbs.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "engine/cli/display/config_options.hpp"
#include "flow/cost.hpp"

namespace flow::cli {

namespace {

constexpr double kJoulesPerKwh = 3'600'000;

struct CostArguments {
  std::string run, since, by = "task";
};

std::string hours_text(double hours) {
  constexpr double kExact = 100;  // fewer hours have digits after the point
  char text[32];
  std::snprintf(text, sizeof text, hours < kExact ? "%.4g" : "%.0f", hours);
  return text;
}

std::string used_text(const std::optional<double>& hours) {
  return hours ? hours_text(*hours) : "-";
}

std::string amount_text(const std::optional<double>& amount) {
  if (!amount) return "-";
  char text[48];
  bool is_small = *amount != 0 && *amount < 1;
  std::snprintf(text, sizeof text, is_small ? "%.4g" : "%.2f", *amount);
  return text;
}

std::vector<std::string> row_of(const CostRow& row, const std::string& name, bool has_prices) {
  std::vector<std::string> cells = {name,
                                    std::to_string(row.tasks),
                                    std::to_string(row.all.attempts),
                                    hours_text(row.all.cpu_hours),
                                    used_text(row.cpu_hours_used),
                                    hours_text(row.all.memory_gb_hours),
                                    used_text(row.memory_gb_hours_used),
                                    hours_text(row.all.gpu_hours),
                                    used_text(row.gpu_hours_used)};
  if (has_prices) cells.push_back(amount_text(row.all.amount()));
  return cells;
}

/// "3 attempts failed: 0.5 CPU-hours, 1.20 USD"; "" for none.
std::string part_text(const CostFigures& part, const char* what, const std::string& currency) {
  if (part.attempts == 0) return "";
  std::string text = std::string(what) + ": " + plural(part.attempts, "attempt") + ", " +
                     hours_text(part.cpu_hours) + " CPU-hours";
  if (part.gpu_hours > 0) text += ", " + hours_text(part.gpu_hours) + " GPU-hours";
  if (!currency.empty() && part.amount())
    text += ", " + amount_text(part.amount()) + " " + currency;
  return text;
}

void print_report(const CostReport& report) {
  bool has_prices = !report.currency.empty();
  std::vector<std::vector<std::string>> rows = {{report.by == "gpu" ? "gpus" : report.by, "tasks",
                                                 "attempts", "cpu-h held", "used", "gb-h held",
                                                 "peak", "gpu-h held", "used"}};
  if (has_prices) rows.front().push_back(report.currency);
  for (const CostRow& row : report.rows)
    rows.push_back(row_of(row, row.name.empty() ? "-" : row.name, has_prices));
  rows.push_back(row_of(report.total, "total", has_prices));
  print_text(table(rows));
  const CostRow& total = report.total;
  for (const std::string& line :
       {part_text(total.failed, "failed", report.currency),
        part_text(total.lost, "lost with a worker or an engine", report.currency),
        part_text(total.stopped, "stopped", report.currency)})
    if (!line.empty()) print_line(line);
  if (total.gpu_hours_idle)
    print_line("GPUs held but idle: " + hours_text(*total.gpu_hours_idle) + " GPU-hours" +
               (total.gpu_hours_unmeasured > 0
                    ? ", and were not measured: " + hours_text(total.gpu_hours_unmeasured)
                    : ""));
  if (total.energy_j)
    print_line("energy of GPUs: " + hours_text(*total.energy_j / kJoulesPerKwh) + " kWh");
  if (total.gpu_hours_staging > 0)
    print_line("GPUs held while inputs were staged: " + hours_text(total.gpu_hours_staging) +
               " GPU-hours");
  if (total.gpu_hours_rank.value_or(0) > 0)
    print_line("GPUs of ranks waited for other ranks: " + hours_text(*total.gpu_hours_rank) +
               " GPU-hours");
  if (total.gpu_hours_fragmented.value_or(0) > 0)
    print_line("GPUs were free, but did not suit a task that waited: " +
               hours_text(*total.gpu_hours_fragmented) + " GPU-hours");
  if (total.gpu_hours_without_queue.value_or(0) > 0)
    print_line("GPUs idle while no task waited for one: " +
               hours_text(*total.gpu_hours_without_queue) + " GPU-hours");
  if (total.egress_gb.value_or(0) > 0)
    print_line("sent between machines: " + hours_text(*total.egress_gb) + " GB" +
               (total.all.egress_amount > 0
                    ? ", " + amount_text(total.all.egress_amount) + " " + report.currency
                    : ""));
  if (total.cached > 0) {
    std::string saved = part_text(total.saved, "saved by the cache", report.currency);
    print_line(plural(total.cached, "cached task") +
               (saved.empty() ? ": what they saved is not known" : "; " + saved));
  }
  if (!has_prices)
    print_line("no prices: add [prices] to flow.toml, with `currency` and `cpu_hour`");
}

int print_cost(VerbContext& context, const CostArguments& arguments) {
  if (!arguments.run.empty() && !arguments.since.empty())
    fail("--since reports on all runs since then: leave RUN or --since out.");
  CostOptions options;
  options.run = arguments.run;
  options.by = arguments.by;
  if (!arguments.since.empty()) {
    int64_t ago = parse_duration("--since", arguments.since);
    if (ago == 0) fail("--since must be longer than 0, such as `7d`.");
    options.since_ms = std::max<int64_t>(now_ms() - ago, 1);
  }
  (void)read_config(context, ".");
  options.config = context.config;
  CostReport report = cost_report(context.engine(), options);
  if (context.json) {
    print_line(report.json());
  } else {
    print_report(report);
  }
  return kDone;
}

}  // namespace

void add_cost(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<CostArguments>();
  CLI::App* verb =
      add_verb(app, context, "cost", "show what runs held and used, and what that costs");
  add_run_argument(verb, arguments->run);
  verb->add_option("--since", arguments->since,
                   "all runs that were started in this time, such as 7d, instead of RUN")
      ->type_name("T");
  verb->add_option("--by", arguments->by, "one line per task, user, queue or gpu (task)")
      ->type_name("WHAT")
      ->check(one_of("--by", {"task", "user", "queue", "gpu"}));
  verb->callback([&context, arguments] {
    context.action = [&context, arguments] { return print_cost(context, *arguments); };
  });
}

}  // namespace flow::cli
