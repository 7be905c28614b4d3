// Converts options of the command line to RunOptions.
#include "engine/cli/display/run_options.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace flow::cli {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kFrontLeaseMin = 100;  // ms

constexpr size_t kParamsBytesMax = 64 << 20;

std::string nearest_file(const fs::path& path) {
  std::vector<std::string> names;
  std::error_code failed;
  fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    if (entry.path().extension() == ".lua") names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  std::string near = nearest_name(path.filename().string(), names);
  return near.empty()
             ? ""
             : " Did you mean `" +
                   (path.has_parent_path() ? (path.parent_path() / near).string() : near) + "`?";
}

std::string read_params_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char chunk[4096];
  while (file.read(chunk, sizeof chunk) || file.gcount() > 0) {
    text.append(chunk, static_cast<size_t>(file.gcount()));
    if (text.size() > kParamsBytesMax)
      fail("--params: `" + path +
           "` has more than 64 MiB. It is a file with a JSON object of "
           "parameters; give large data as a file parameter.");
  }
  if (!file.is_open() || file.bad())
    fail("--params: cannot read `" + path + "`. It is a file with a JSON object of parameters.");
  auto value = from_json(text);
  if (!value.ok()) fail("--params: `" + path + "` is not JSON: " + value.error().message);
  bool empty_list = value->kind() == Value::Kind::table && value->as_table().list.empty();
  if (!empty_list)
    fail("--params: `" + path + "` must hold a JSON object, such as {\"epochs\": 3}.");
  return text;
}

}  // namespace

void add_parameter_options(CLI::App* verb, RunArguments& arguments) {
  verb->add_option("--param", arguments.params, "a parameter; may be repeated, overrides --params")
      ->type_name("K=V")
      ->allow_extra_args(false);
  verb->add_option("--params", arguments.params_file, "file with parameters as a JSON object")
      ->type_name("FILE.json");
  verb->add_flag("--fresh", arguments.fresh,
                 "use no results of other runs from the cache; replace its entries");
  verb->add_flag("--offline", arguments.offline,
                 "use the state's copies of URLs, without asking their servers");
}

void add_jobs_option(CLI::App* verb, RunArguments& arguments) {
  verb->add_option("--jobs,-j", arguments.jobs,
                   "CPU slots (default: the CPUs this process may use)")
      ->type_name("N")
      ->check(whole_number("--jobs", 1, kJobsMax));
}

void add_resource_option(CLI::App* verb, std::vector<std::string>& resources) {
  verb->add_option("--resource", resources, "a custom resource and its amount; may be repeated")
      ->type_name("NAME=N")
      ->allow_extra_args(false);
}

std::vector<std::pair<std::string, double>> resources_of(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, double>> resources;
  for (const std::string& text : texts) {
    size_t equals = std::min(text.find('='), text.size());
    const char* end = text.data() + text.size();
    const char* number = text.data() + std::min(equals + 1, text.size());
    double amount = 0;
    auto [stop, error] = std::from_chars(number, end, amount);
    bool is_number = error == std::errc() && stop == end && equals > 0;
    if (!is_number)
      fail("--resource takes NAME=N, an amount of the named resource, not `" + text +
           "`. Write for example `--resource fpga=2`.");
    resources.emplace_back(text.substr(0, equals), amount);
  }
  return resources;
}

void add_workers_option(CLI::App* verb, RunArguments& arguments) {
  verb->add_option("--workers", arguments.workers,
                   "start N workers on this machine, which share its CPUs and GPUs")
      ->type_name("N")
      ->check(whole_number("--workers", 1, kWorkersMax));
  verb->add_flag("--encrypt", arguments.encrypt,
                 "encrypt data between this machine and its workers (--workers, --on slurm)");
  add_lost_after_option(verb, arguments.lost_after);
}

void add_lost_after_option(CLI::App* verb, std::string& lost_after) {
  verb->add_option(
          "--lost-after", lost_after,
          "consider a worker lost after this much silence; its work moves elsewhere (default: 10s)")
      ->type_name("TIME");
}

int64_t lost_after_of(const std::string& text) {
  if (text.empty()) return EngineOptions().lost_after_ms;
  int64_t ms = parse_duration("--lost-after", text);
  if (ms < kLostAfterMsMin || ms > kLostAfterMsMax)
    fail("--lost-after is from " + format_duration(kLostAfterMsMin) + " to " +
         format_duration(kLostAfterMsMax) + ", not `" + text +
         "`: it has to cover about ten heartbeats of a busy or distant worker. Write for example "
         "`--lost-after 30s`.");
  return ms;
}

void add_watch_options(CLI::App* verb, VerbContext& context, RunArguments& arguments) {
  verb->add_option("--serve-for", arguments.serve_for,
                   "end services after this time, e.g. 30s (default: never)")
      ->type_name("TIME");
  verb->add_option("--grace", arguments.grace,
                   "time for tasks to save their state after Ctrl-C (default: 10s)")
      ->type_name("TIME");
  verb->add_option("--front-lease", arguments.front_lease,
                   "how long services keep running after this process was killed (default: 60s)")
      ->type_name("TIME");
  verb->add_flag("--logs", arguments.logs, "print what tasks log and write, as it arrives");
  verb->add_option_function<std::string>(
          "--color",
          [](const std::string& when) {
            set_color_mode(when == "always"  ? ColorMode::always
                           : when == "never" ? ColorMode::never
                                             : ColorMode::automatic);
          },
          "colors: auto, always or never (default: auto, on a terminal if NO_COLOR is not set)")
      ->type_name("auto|always|never")
      ->check(one_of("--color", {"auto", "always", "never"}));
  verb->add_flag("--quiet,-q", context.quiet, "print errors and warnings only");
}

void add_detach_option(CLI::App* verb, RunArguments& arguments) {
  verb->add_flag("--detach", arguments.detach,
                 "continue in the background; return when the services are ready");
}

void add_budget_option(CLI::App* verb, RunArguments& arguments) {
  verb->add_option(
          "--budget", arguments.budget,
          "stop the run before it costs more than this, such as \"50 USD\", by [prices] of "
          "flow.toml (default: no limit)")
      ->type_name("MONEY");
}

void add_on_end_option(CLI::App* verb, RunArguments& arguments) {
  verb->add_option("--on-end", arguments.on_end,
                   "a command that gets the run as JSON when it has ended, or a URL to post it to")
      ->type_name("CMD|URL");
}

void add_rerun_options(CLI::App* verb, VerbContext& context, RunArguments& arguments) {
  add_jobs_option(verb, arguments);
  add_resource_option(verb, arguments.resources);
  add_workers_option(verb, arguments);
  add_slurm_options(verb, arguments);
  add_head_options(verb, context);
  add_on_end_option(verb, arguments);
  add_log_options(verb, context);
  add_watch_options(verb, context, arguments);
  add_budget_option(verb, arguments);
}

RunOptions run_options(const RunArguments& arguments) {
  RunOptions options;
  options.name = arguments.name;
  options.jobs = arguments.jobs;
  options.fresh = arguments.fresh;
  options.fail_fast = arguments.fail_fast;
  options.offline = arguments.offline;
  options.logs = arguments.logs;
  options.on_end = arguments.on_end;
  options.budget = arguments.budget;
  if (!arguments.grace.empty()) options.grace_ms = parse_duration("--grace", arguments.grace);
  if (!arguments.serve_for.empty()) {
    options.serve_for_ms = parse_duration("--serve-for", arguments.serve_for);
  }
  if (!arguments.front_lease.empty()) {
    options.front_lease_ms = parse_duration("--front-lease", arguments.front_lease);
    if (options.front_lease_ms < kFrontLeaseMin)
      fail("--front-lease is at least 100ms: in less time a service cannot start.");
  }
  if (!arguments.params_file.empty()) options.params_json = read_params_file(arguments.params_file);
  for (const std::string& param : arguments.params) {
    size_t equals = param.find('=');
    if (equals == std::string::npos || equals == 0) {
      fail("--param takes NAME=VALUE, not `" + param + "`. Write for example `--param epochs=3`.");
    }
    options.text_params.emplace_back(param.substr(0, equals), param.substr(equals + 1));
  }
  return options;
}

std::string script_path(const std::string& file, RunOptions& options) {
  if (file != "-") return script_path(file);
  constexpr size_t kScriptMax = 16 << 20;
  char buffer[1 << 16];
  while (true) {
    ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::string("cannot read the standard input: ") + std::strerror(errno) + ".");
    if (got == 0) break;
    options.script_text.append(buffer, static_cast<size_t>(got));
    if (options.script_text.size() > kScriptMax)
      fail("the script on the standard input has more than 16 MiB.");
  }
  if (options.script_text.empty()) fail("the standard input has no script.");
  return "stdin";
}

std::string script_path(const std::string& file_or_dir) {
  std::error_code failed;
  fs::path path = file_or_dir;
  if (fs::is_directory(path, failed)) {
    path /= "pipeline.lua";
    if (!fs::exists(path, failed)) {
      fail("the folder `" + file_or_dir +
           "` has no pipeline.lua. Name the script itself, or make one with `flow init " +
           file_or_dir + "`.");
    }
  }
  if (!fs::exists(path, failed)) {
    fail("there is no script `" + file_or_dir + "`." + nearest_file(path));
  }
  if (!fs::is_regular_file(path, failed)) {
    fail("`" + file_or_dir + "` is neither a script nor a folder with a pipeline.lua.");
  }
  return path.string();
}

bool names_a_script(const std::string& target) {
  std::error_code failed;
  return target == "-" || fs::exists(target, failed) || target.ends_with(".lua") ||
         target.find('/') != std::string::npos;
}

}  // namespace flow::cli
