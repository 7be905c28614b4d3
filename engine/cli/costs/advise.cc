// flow advise [RUN]
#include "engine/cli/costs/cost_verbs.hpp"
#include "flow/cost.hpp"

namespace flow::cli {

namespace {

int print_advice(const VerbContext& context, const std::string& run) {
  AdviceReport report = advise(context.engine(), run);
  if (context.json) {
    print_line(report.json());
    return kDone;
  }
  for (const Advice& each : report.advice) {
    print_line(each.task + " (" + each.kind + "): " + each.change);
    print_line("  measured: " + each.evidence);
    print_line("  gain: " + each.gain);
  }
  std::string from =
      plural(report.attempts, "successful attempt") + " in " + plural(report.runs, "run");
  if (report.attempts == 0)
    print_line("nothing to advise: no task of the run " + report.run + " has run to its end");
  else if (report.advice.empty())
    print_line("nothing to advise: " + from + " showed nothing beyond the thresholds");
  else
    print_line("from " + from);
  return kDone;
}

}  // namespace

void add_advise(CLI::App& app, VerbContext& context) {
  auto run = std::make_shared<std::string>();
  CLI::App* verb =
      add_verb(app, context, "advise", "show what would make the tasks of a run cheaper or faster");
  add_run_argument(verb, *run);
  verb->callback([&context, run] {
    context.action = [&context, run] { return print_advice(context, *run); };
  });
}

}  // namespace flow::cli
