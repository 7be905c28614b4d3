// The part of the public header besides engines: lint, the graph of a script, paths of state and
// executor, the machine's GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "engine/api/local_engine.hpp"
#include "engine/base/files.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/client/run_stream.hpp"
#include "engine/config/toml_reader.hpp"
#include "engine/costs/prices.hpp"
#include "engine/head/slurm_head.hpp"
#include "engine/plan/remote_origin.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/store/lock.hpp"
#include "engine/submission/task_configuration.hpp"
#include "engine/worker/gpu_discovery.hpp"
#include "flow/machine.hpp"
#include "lua/state/script.hpp"
#include "transports/nccl/nccl.hpp"

namespace flow {

namespace fs = std::filesystem;

std::vector<std::string> lint(const std::string& file) {
  std::error_code failed;
  fs::path path = file;
  if (fs::is_directory(path, failed)) path /= "pipeline.lua";
  auto text = read_file(path.string());
  if (!text.ok()) throw Failed(user_error(text.error().message));
  return lint_source(path.string(), *text);
}

PlanInfo build_graph(const std::string& script, const EngineOptions& options,
                     const RunOptions& run) {
  Submission submission;
  submission.script = script;
  submission.working_directory = working_directory_of(options);
  submission.options = run;
  Builder builder(value_or_throw(find_executor(options)));
  BuiltGraph built = value_or_throw(build(submission, builder));
  return plan_info(built.plan);
}

namespace {

/// Throws Failed if the file of prices that applies was not read.
void check_included_prices(const ConfigOptions& config, const Configuration& configuration) {
  const ConfigSetting* include = price_include(configuration);
  if (include == nullptr) return;
  std::string path = included_path(*include);
  bool is_read = std::ranges::any_of(
      config.files, [&](const ConfigFile& file) { return file.is_prices && file.path == path; });
  if (is_read) return;
  auto text = read_file(path, kTomlBytesMax);
  throw Failed(user_error(
      fmt::format("{}{} `include`: {}", include->location(), include->header,
                  text.ok() ? fmt::format("`{}` was not read", path) : text.error().message)));
}

}  // namespace

std::vector<ConfigValue> config_values(const ConfigOptions& config) {
  Configuration configuration = value_or_throw(read_task_configuration(config));
  check_included_prices(config, configuration);
  std::vector<ConfigValue> values = run_values(configuration);
  (void)value_or_throw(prices_of(values));
  return values;
}

std::vector<ConfigValue> explain_config(const std::string& script, const EngineOptions& options,
                                        const RunOptions& run, std::vector<std::string>& warnings) {
  Configuration configuration = value_or_throw(read_task_configuration(run.config));
  Submission submission = value_or_throw(make_submission(options, run));
  submission.script = script;
  submission.options.config = {};
  Builder builder(value_or_throw(find_executor(options)));
  Plan plan = value_or_throw(build(submission, builder)).plan;
  std::vector<ConfigValue> values = explain_tasks(configuration, plan);
  configure_tasks(configuration, plan);
  warnings = std::move(plan.warnings);
  return values;
}

namespace {

/// As `--param name=TEXT` takes it.
std::string param_text(const Value& value) {
  if (value.kind() == Value::Kind::string) return value.as_string();
  if (value.kind() == Value::Kind::file) {
    auto remote = parse_remote_origin(value.as_file().origin);
    return remote.ok() ? display_url(remote->url) : value.as_file().origin;
  }
  if (value.kind() != Value::Kind::table || !value.as_table().fields.empty()) return to_json(value);
  std::string text;
  for (const Value& item : value.as_table().list)
    text += (text.empty() ? "" : ",") + param_text(item);
  return text;
}

std::string allowed_text(const ParamSpec& spec) {
  auto number = [](double bound) {
    bool is_whole = std::floor(bound) == bound && std::abs(bound) < 0x1p53;
    return is_whole ? std::to_string(static_cast<int64_t>(bound)) : to_json(Value(bound));
  };
  if (spec.min && spec.max) return number(*spec.min) + " to " + number(*spec.max);
  if (spec.min) return "at least " + number(*spec.min);
  if (spec.max) return "at most " + number(*spec.max);
  if (!spec.pattern.empty()) return "matches " + spec.pattern;
  std::string text;
  for (const std::string& choice : spec.choices) text += (text.empty() ? "one of " : ", ") + choice;
  return text;
}

}  // namespace

std::vector<ParameterInfo> pipeline_parameters(const std::string& script,
                                               const EngineOptions& options) {
  Submission submission;
  submission.script = script;
  submission.working_directory = working_directory_of(options);
  Builder builder(value_or_throw(find_executor(options)));
  Plan plan = value_or_throw(describe(submission, builder));
  std::vector<ParameterInfo> parameters;
  for (const ParamSpec& spec : plan.params_schema) {
    ParameterInfo& info = parameters.emplace_back();
    info.name = spec.name;
    info.type = spec.of.empty() ? spec.type : spec.type + " of " + spec.of;
    info.is_required = !spec.has_default;
    if (spec.has_default) info.default_value = param_text(spec.default_value);
    info.help = spec.help;
    info.allowed = allowed_text(spec);
  }
  std::ranges::sort(parameters, {}, &ParameterInfo::name);
  return parameters;
}

std::string state_directory(const EngineOptions& options) {
  return value_or_throw(find_state(options));
}

std::string broken_state_link(const std::string& directory) {
  Status sound = no_broken_links(directory);
  return sound.ok() ? "" : sound.error().message;
}

std::string unusable_state(const std::string& directory) {
  std::error_code failed;
  if (!fs::exists(fs::path(directory) / "db", failed)) return "";
  StoreOptions options;
  options.read_only = true;
  auto store = open_store(directory, options);
  if (!store.ok()) return store.error().message;
  Status known = check_schemas(**store);
  return known.ok() ? "" : fmt::format("the state `{}`: {}", directory, known.error().message);
}

std::string executor_program(const EngineOptions& options) {
  return value_or_throw(find_executor(options));
}

ClusterInfo cluster_info(const EngineOptions& options) {
  if (!options.head.empty()) {
    Engine client(options);
    return {client.address(), client.nodes()};
  }
  std::string dir = state_directory(options);
  ok_or_throw(readable_state(dir));
  ClientRequest request;
  request.mutable_list_workers();
  auto answer = send_to_writer(dir, request);
  if (!answer.ok() && state_is_locked(dir)) throw Failed(answer.error());
  if (!answer.ok())
    throw Failed(environment_error(fmt::format(
        "no flow process has the state `{}` open: start `flow head` or `flow run` on it", dir)));
  if (answer->has_error()) throw Failed(get_error(answer->error()));
  return {answer->worker_list().address(), get_nodes(answer->worker_list())};
}

MachineGpus machine_gpus(const EngineOptions& options) {
  return find_gpus(executor_program(options));
}

MachineLimits machine_limits() {
  auto groups = own_cgroups();
  MachineLimits limits;
  limits.cpus = usable_cpus();
  limits.memory_bytes = usable_memory_bytes();
  int64_t memory = cgroup_memory_limit(groups), cpus_milli = cgroup_cpu_limit_milli(groups);
  limits.is_cgroup_memory = memory > 0 && memory == limits.memory_bytes;
  limits.is_cgroup_cpus = cpus_milli > 0 && cpus_milli <= int64_t{limits.cpus} * 1000;
  CgroupParent parent = CgroupParent::find(groups);
  limits.is_memory_enforced = parent.has_memory();
  limits.memory_enforcement =
      parent.has_memory()
          ? fmt::format("cgroup v{} below {}", parent.is_v2() ? 2 : 1, parent.folder())
          : parent.why_no_memory();
  return limits;
}

SlurmRequest slurm_request(const EngineOptions& options) {
  return value_or_throw(slurm_request_of(options));
}

std::vector<GpuLibrary> gpu_libraries() {
  std::vector<GpuLibrary> libraries = script_gpu_libraries();
  if (libraries.empty()) return libraries;  // this build does not support GPUs
  auto nccl = nccl_version();
  libraries.push_back(
      {"NCCL", nccl.ok(),
       nccl.ok() ? *nccl + ", " + nccl_path() : host_route_text(nccl.error().message)});
  return libraries;
}

std::string changed_sources(const Bundle& bundle) {
  std::string names;
  if (!bundle.root.starts_with("/")) return names;  // of another machine
  for (const auto& [path, text] : bundle.files) {
    auto now = read_file((fs::path(bundle.root) / path).string());
    bool was_typed = !now.ok() && path == kStdinScript;  // never a file
    if (was_typed || (now.ok() && *now == text)) continue;
    names += (names.empty() ? "" : ", ") + path;
  }
  return names;
}

}  // namespace flow
