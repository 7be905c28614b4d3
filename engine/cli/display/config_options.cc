#include "engine/cli/display/config_options.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <utility>

namespace flow::cli {

namespace fs = std::filesystem;

namespace {

constexpr const char* kCommandLine = "command line";
constexpr const char* kDefault = "default";

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

const ConfigValue* find_value(const std::vector<ConfigValue>& values, const std::string& table,
                              const std::string& option) {
  auto found = std::ranges::find_if(values, [&](const ConfigValue& value) {
    return value.table == table && value.option == option;
  });
  return found == values.end() ? nullptr : &*found;
}

Value text_value(const std::string& text) { return text.empty() ? Value() : Value(text); }
Value count_value(int32_t count) { return count == 0 ? Value() : Value(int64_t{count}); }
Value flag_value(bool flag) { return flag ? Value(true) : Value(); }

/// Chooses the value of an option and notes its origin.
class Options {
 public:
  Options(VerbContext& context, const std::vector<ConfigValue>& values, const char* table)
      : context_(context), values_(values), table_(table) {}

  /// `given`: on the command line; nil if it is not. `from_environment` is the name of a variable,
  /// or null. Without `uses_files` only these two count.
  ConfigValue choose(const char* option, Value given, const char* from_environment = nullptr,
                     bool uses_files = true) {
    ConfigValue chosen;
    chosen.table = table_;
    chosen.option = option;
    chosen.value = std::move(given);
    chosen.origin = chosen.value.is_nil() ? kDefault : kCommandLine;
    if (chosen.value.is_nil() && from_environment != nullptr &&
        !variable(from_environment).empty()) {
      chosen.value = Value(variable(from_environment));
      chosen.origin = from_environment;
    }
    const ConfigValue* in_file = find_value(values_, table_, option);
    if (chosen.value.is_nil() && uses_files && in_file != nullptr) chosen = *in_file;
    context_.explained.push_back(chosen);
    return chosen;
  }

  void text(const char* option, std::string& to, bool uses_files = true) {
    ConfigValue chosen = choose(option, text_value(to), nullptr, uses_files);
    if (chosen.value.kind() == Value::Kind::string) to = chosen.value.as_string();
  }
  void flag(const char* option, bool& to) {
    ConfigValue chosen = choose(option, flag_value(to));
    if (chosen.value.kind() == Value::Kind::boolean) to = chosen.value.as_boolean();
  }
  void count(const char* option, int32_t& to, int32_t max, const char* from_environment = nullptr,
             bool uses_files = true) {
    ConfigValue chosen = choose(option, count_value(to), from_environment, uses_files);
    if (chosen.value.is_nil()) return;
    to = count_of(chosen, max);
    context_.explained.back().value = Value(int64_t{to});
  }
  /// As `text`, of a duration.
  void duration(const char* option, std::string& to, bool uses_files = true) {
    ConfigValue chosen = choose(option, text_value(to), nullptr, uses_files);
    if (chosen.value.kind() != Value::Kind::string) return;
    to = chosen.value.as_string();
    if (chosen.origin != kCommandLine) parse_duration(chosen.origin + ": `" + option + "`", to);
  }

 private:
  static int32_t count_of(const ConfigValue& chosen, int32_t max) {
    int64_t count = 0;
    if (chosen.value.kind() == Value::Kind::integer) {
      count = chosen.value.as_integer();
    } else if (chosen.value.kind() == Value::Kind::string) {
      const std::string& text = chosen.value.as_string();
      auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), count);
      if (failed != std::errc() || end != text.data() + text.size()) count = 0;
    }
    if (count >= 1 && count <= max) return static_cast<int32_t>(count);
    fail(chosen.origin + ": `" + chosen.option + "` is a whole number from 1 to " +
         std::to_string(max) + ", not `" +
         (chosen.value.kind() == Value::Kind::string ? chosen.value.as_string()
                                                     : to_json(chosen.value)) +
         "`.");
  }

  VerbContext& context_;
  const std::vector<ConfigValue>& values_;
  const char* table_;
};

/// A path in a file starts at the file's folder.
std::string path_of(const ConfigValue& chosen) {
  fs::path path = chosen.value.as_string();
  if (chosen.file.empty() || path.is_absolute()) return path.string();
  return (fs::path(chosen.file).parent_path() / path).lexically_normal().string();
}

/// The folder of the script FILE|DIR|-, and of the file that a link leads to.
std::string folder_of(const std::string& file) {
  if (file == "-") return ".";
  std::error_code failed;
  fs::path path = file;
  if (fs::is_directory(path, failed)) path /= "pipeline.lua";
  if (fs::is_symlink(path, failed)) {
    fs::path target = fs::canonical(path, failed);
    if (!failed) path = target;
  }
  fs::path folder = path.parent_path();
  return folder.empty() ? "." : folder.string();
}

void choose_workers(Options& options, const VerbContext& context, RunArguments& arguments) {
  bool is_local = context.head.empty();
  bool on_given = !arguments.on.empty(), workers_given = arguments.workers > 0;
  options.count("workers", arguments.workers, kWorkersMax, nullptr, is_local && !on_given);
  options.text("on", arguments.on, is_local && !workers_given);
  if (!arguments.on.empty() && arguments.on != "slurm")
    fail(context.explained.back().origin + ": `on` is `slurm`, not `" + arguments.on + "`.");
  bool is_both = !on_given && !workers_given && arguments.workers > 0 && !arguments.on.empty();
  if (!is_both) return;
  const auto& explained = context.explained;
  fail("`workers` (" + explained[explained.size() - 2].origin +
       ") starts workers on this machine, and `on` (" + explained.back().origin +
       ") on others: give one of them.");
}

void choose_slurm(VerbContext& context, RunArguments& arguments,
                  const std::vector<ConfigValue>& values) {
  Options options(context, values, "slurm");
  SlurmOptions& slurm = arguments.slurm;
  bool is_used = arguments.on == "slurm";
  bool has_nodes = slurm.nodes > 0, is_elastic = !arguments.elastic.empty();
  options.count("nodes", slurm.nodes, kSlurmNodesMax, nullptr, is_used && !is_elastic);
  options.text("elastic", arguments.elastic, is_used && !has_nodes);
  const ConfigValue& elastic = context.explained.back();
  if (elastic.origin != kCommandLine && !arguments.elastic.empty())
    read_elastic(elastic.origin + ": `elastic`", arguments.elastic, slurm);
  options.duration("idle", arguments.idle, is_used);
  options.count("gpus_per_node", slurm.gpus_per_node, kSlurmNodesMax, nullptr, is_used);
  options.text("time", slurm.time, is_used);
  options.text("partition", slurm.partition, is_used);
  options.text("account", slurm.account, is_used);
  options.text("qos", slurm.qos, is_used);
  options.text("constraint", slurm.constraint, is_used);
  std::vector<Value> arguments_given;
  for (const std::string& each : slurm.arguments) arguments_given.emplace_back(each);
  Value given = arguments_given.empty() ? Value() : Value::list(std::move(arguments_given));
  ConfigValue extra = options.choose("arguments", std::move(given), nullptr, is_used);
  slurm.arguments.clear();
  if (extra.value.kind() == Value::Kind::table)
    for (const Value& each : extra.value.as_table().list)
      if (each.kind() == Value::Kind::string) slurm.arguments.push_back(each.as_string());
  options.text("listen", arguments.listen, is_used);
}

}  // namespace

void add_profile_option(CLI::App* verb, VerbContext& context) {
  verb->add_option("--profile", context.profile,
                   "use the tables [profile.NAME.…] of flow.toml (default: $FLOW_PROFILE)")
      ->type_name("NAME");
}

std::vector<ConfigValue> read_config(VerbContext& context, const std::string& folder,
                                     const std::string& profile) {
  ConfigOptions& config = context.config;
  config.files = find_config(folder == "." ? "" : folder);
  std::string named = variable("FLOW_PROFILE");
  config.profile = !context.profile.empty() ? context.profile : !named.empty() ? named : profile;
  ConfigValue used;
  used.table = "defaults";
  used.option = "profile";
  used.value = text_value(config.profile);
  used.origin = !context.profile.empty() ? kCommandLine
                : !named.empty()         ? "FLOW_PROFILE"
                                         : kDefault;
  context.explained = {std::move(used)};
  return config_values(config);
}

void choose_state(VerbContext& context, const std::vector<ConfigValue>& values,
                  bool may_have_head) {
  bool is_local = !may_have_head || !context.state.empty();
  Options head(context, values, "head");
  ConfigValue address =
      head.choose("address", text_value(context.head), is_local ? nullptr : "FLOW_HEAD",
                  !is_local && variable("FLOW_STATE").empty());
  if (!address.value.is_nil()) context.head = address.value.as_string();
  bool has_head = !context.head.empty();
  ConfigValue secret =
      head.choose("secret_file", text_value(context.secret_file), nullptr, has_head);
  if (!secret.value.is_nil()) context.secret_file = path_of(secret);
  Options defaults(context, values, "defaults");
  ConfigValue state = defaults.choose("state", text_value(context.state),
                                      has_head ? nullptr : "FLOW_STATE", !has_head);
  if (!state.file.empty()) context.state = path_of(state);
}

void choose_run_options(VerbContext& context, RunArguments& arguments,
                        const std::vector<ConfigValue>& values, bool keeps_budget) {
  Options defaults(context, values, "defaults");
  defaults.count("jobs", arguments.jobs, kJobsMax, "FLOW_JOBS");
  choose_workers(defaults, context, arguments);
  defaults.duration("grace", arguments.grace);
  defaults.flag("fail_fast", arguments.fail_fast);
  defaults.flag("strict", arguments.strict);
  defaults.flag("offline", arguments.offline);
  defaults.flag("logs", arguments.logs);
  defaults.text("budget", arguments.budget, !keeps_budget);
  choose_slurm(context, arguments, values);
  // The engine reads [notify] and [prices]: here they are only explained.
  Options notify(context, values, "notify");
  notify.choose("on_end", text_value(arguments.on_end));
  for (const char* option : {"webhook", "command", "secret", "on"}) notify.choose(option, {});
  std::ranges::copy_if(values, std::back_inserter(context.explained),
                       [](const ConfigValue& value) { return value.table == "prices"; });
}

void configure_verb(VerbContext& context, bool may_have_head) {
  // --profile is for the files of the run's script, which are elsewhere.
  std::string profile = std::exchange(context.profile, "");
  bool has_files = !find_config("").empty();  // FLOW_PROFILE may be of other folders
  choose_state(context, has_files ? read_config(context, ".") : std::vector<ConfigValue>(),
               may_have_head);
  context.profile = std::move(profile);
}

void configure_run(VerbContext& context, RunArguments& arguments, const std::string& file) {
  std::vector<ConfigValue> values = read_config(context, folder_of(file));
  // Workers of this process work for a state on this machine.
  bool is_local = arguments.workers > 0 || !arguments.on.empty();
  choose_state(context, values, !is_local || !context.head.empty());
  choose_run_options(context, arguments, values);
}

void configure_again(VerbContext& context, RunArguments& arguments, const RunInfo& run,
                     bool new_code) {
  if (!context.profile.empty() && !new_code)
    fail(
        "--profile is for the files that `--code new` reads again: a run keeps its configuration. "
        "Add `--code new`, or leave --profile out.");
  std::string profile;
  std::vector<ConfigValue> values;
  if (context.head.empty()) {
    values = Reader(context.engine()).config(run.id, profile);
    context.config = {};
  }
  size_t colon = run.script.find(":/");  // MACHINE:/path of a run of another machine
  std::string script = colon == std::string::npos ? run.script : run.script.substr(colon + 1);
  if (new_code) values = read_config(context, folder_of(script), profile);
  if (!new_code && !context.head.empty()) values = read_config(context, ".");
  choose_run_options(context, arguments, values, !new_code);
}

namespace {

std::string value_text(const Value& value) {
  if (value.is_nil()) return "-";
  const Value* secret = value.find("env");
  bool is_secret = secret != nullptr && secret->kind() == Value::Kind::string &&
                   value.as_table().fields.size() == 1;
  if (is_secret) return "flow.env(\"" + secret->as_string() + "\")";
  return value.kind() == Value::Kind::string ? value.as_string() : to_json(value);
}

void print_row(const ConfigValue& value) {
  print_line("{\"task\":" + text_or_null(value.task) + ",\"table\":" + json_text(value.table) +
             ",\"option\":" + json_text(value.option) +
             ",\"value\":" + (value.value.is_nil() ? "null" : to_json(value.value)) +
             ",\"origin\":" + json_text(value.origin) +
             ",\"has_effect\":" + (value.has_effect ? "true" : "false") + "}");
}

}  // namespace

void print_config(const VerbContext& context, const std::vector<ConfigValue>& tasks) {
  std::vector<ConfigValue> all = context.explained;
  for (ConfigValue& value : all)
    if (value.option == "state" && value.value.is_nil() && context.head.empty())
      value.value = Value(state_directory(context.engine()));
  all.insert(all.end(), tasks.begin(), tasks.end());
  std::vector<std::vector<std::string>> rows;
  for (const ConfigValue& value : all) {
    if (context.json) {
      print_row(value);
      continue;
    }
    std::string name = !value.task.empty()         ? value.task + "." + value.option
                       : value.table == "defaults" ? value.option
                                                   : value.table + "." + value.option;
    rows.push_back({name, value_text(value.value),
                    value.origin + (value.has_effect ? "" : " (no effect yet)")});
  }
  print_text(table(rows));
}

}  // namespace flow::cli
