// --on slurm and its options.
#include <charconv>

#include "engine/cli/display/run_options.hpp"

namespace flow::cli {

namespace {

CLI::Option* add_text(CLI::App* verb, const char* name, std::string& to, const char* what,
                      const char* type) {
  return verb->add_option(name, to, what)->type_name(type);
}

/// Options that are valid only with --on slurm.
void refuse_without_slurm(const RunArguments& arguments) {
  const SlurmOptions& slurm = arguments.slurm;
  const std::pair<const char*, bool> given[] = {{"--nodes", slurm.nodes > 0},
                                                {"--elastic", !arguments.elastic.empty()},
                                                {"--idle", !arguments.idle.empty()},
                                                {"--gpus-per-node", slurm.gpus_per_node > 0},
                                                {"--time", !slurm.time.empty()},
                                                {"--partition", !slurm.partition.empty()},
                                                {"--account", !slurm.account.empty()},
                                                {"--qos", !slurm.qos.empty()},
                                                {"--constraint", !slurm.constraint.empty()},
                                                {"--slurm-arg", !slurm.arguments.empty()},
                                                {"--listen", !arguments.listen.empty()}};
  for (const auto& [name, is_given] : given)
    if (is_given)
      fail(std::string(name) + " is for Slurm nodes: add `--on slurm`, or leave it out.");
}

}  // namespace

void read_elastic(const std::string& option, const std::string& text, SlurmOptions& options) {
  const char* end = text.data() + text.size();
  auto [colon, no_min] = std::from_chars(text.data(), end, options.nodes_min);
  bool has_colon = no_min == std::errc() && colon != end && *colon == ':';
  const char* last = nullptr;
  if (has_colon) last = std::from_chars(colon + 1, end, options.nodes_max).ptr;
  bool is_range = has_colon && last == end && options.nodes_min >= 0 && options.nodes_max > 0 &&
                  options.nodes_min <= options.nodes_max && options.nodes_max <= kSlurmNodesMax;
  if (is_range) return;
  fail(option + " takes MIN:MAX, the smallest and the largest number of nodes, not `" + text +
       "`. Write for example `0:8`.");
}

void add_slurm_options(CLI::App* verb, RunArguments& arguments) {
  SlurmOptions& slurm = arguments.slurm;
  add_text(verb, "--on", arguments.on, "`slurm`: run on nodes that Slurm allocates", "slurm")
      ->check(one_of("--on", {"slurm"}));
  verb->add_option("--nodes", slurm.nodes,
                   "number of Slurm nodes (default: those of the allocation)")
      ->type_name("N")
      ->check(whole_number("--nodes", 1, kSlurmNodesMax));
  add_text(verb, "--elastic", arguments.elastic,
           "from MIN to MAX nodes, more when work is ready for them", "MIN:MAX");
  add_text(verb, "--idle", arguments.idle,
           "release a node beyond MIN after this much idle time (default: 1m)", "TIME");
  verb->add_option("--gpus-per-node", slurm.gpus_per_node, "GPUs of each node")
      ->type_name("N")
      ->check(whole_number("--gpus-per-node", 1, kSlurmNodesMax));
  add_text(verb, "--time", slurm.time, "time limit of an allocation: 2h, or in Slurm's format",
           "TIME");
  add_text(verb, "--partition", slurm.partition, "Slurm partition", "NAME");
  add_text(verb, "--account", slurm.account, "Slurm account", "NAME");
  add_text(verb, "--qos", slurm.qos, "Slurm QOS", "NAME");
  add_text(verb, "--constraint", slurm.constraint, "required features of the nodes", "LIST");
  verb->add_option("--slurm-arg", slurm.arguments, "extra sbatch argument; may be repeated")
      ->type_name("ARG")
      ->allow_extra_args(false);
  add_text(verb, "--listen", arguments.listen,
           "address at which the nodes reach this machine (default: its own, any free port)",
           "HOST:PORT");
}

EngineOptions engine_options(const VerbContext& context, const RunArguments& arguments) {
  EngineOptions options = context.engine(arguments.jobs, arguments.workers);
  options.resources = resources_of(arguments.resources);
  options.resume_detached = true;
  if (!context.head.empty() && !options.resources.empty())
    fail("--resource describes this machine, and the run is for the head at " + context.head +
         ", whose workers set their own: give one of them.");
  options.encrypt = arguments.encrypt;
  if (arguments.encrypt && arguments.workers == 0 && arguments.on.empty())
    fail(
        "--encrypt is for workers that this process leads: add --workers N or --on slurm. A head "
        "that already runs gets the option when it is started: `flow head --encrypt`.");
  options.lost_after_ms = lost_after_of(arguments.lost_after);
  if (!arguments.lost_after.empty() && arguments.workers == 0 && arguments.on.empty())
    fail(
        "--lost-after is for workers that this process leads: add --workers N or --on slurm. A "
        "head that already runs gets the option when it is started: `flow head --lost-after`.");
  if (arguments.on.empty()) {
    refuse_without_slurm(arguments);
    return options;
  }
  if (arguments.workers > 0)
    fail("--workers starts workers on this machine, and --on slurm on others: give one of them.");
  if (!context.head.empty())
    fail("--on slurm makes this process the head, and --head names another: give one of them.");
  options.slurm = arguments.slurm;
  options.listen = arguments.listen;
  if (!arguments.elastic.empty()) read_elastic("--elastic", arguments.elastic, *options.slurm);
  if (!arguments.idle.empty()) options.slurm->idle_ms = parse_duration("--idle", arguments.idle);
  return options;
}

}  // namespace flow::cli
