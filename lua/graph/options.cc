// Reads and checks the options of a task, by their names in docs/reference-lua.md.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "engine/base/size_units.hpp"
#include "engine/plan/task_options.hpp"
#include "engine/plan/worker_selector.hpp"
#include "flow/collective.hpp"
#include "lua/graph/option_reader.hpp"
#include "lua/graph/service_options.hpp"
#include "lua/graph/shell_template.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {

namespace {

constexpr double kCpusMax = 100'000, kGpusMax = 10'000;
constexpr lua_Integer kRetriesMax = 1'000'000;

constexpr uint8_t bit(TaskKind kind) { return static_cast<uint8_t>(1u << static_cast<int>(kind)); }
constexpr uint8_t kAnyKind = 0xff, kShellOnly = bit(TaskKind::shell),
                  kServiceOnly = bit(TaskKind::service),
                  kShellOrService = kShellOnly | kServiceOnly;

// ---- needs

void read_cpus(const Option& option) {
  // Larger requests can never be satisfied; the run's worker check reports them.
  double cpus =
      std::min(option.number(0.001, HUGE_VAL, "a number of CPUs, at least 0.001"), kCpusMax);
  option.def.resources.cpus_milli = static_cast<int32_t>(std::lround(cpus * 1000));
}
void read_memory(const Option& option) { option.def.resources.memory_bytes = option.bytes(); }
void read_gpus(const Option& option) {
  constexpr const char* kForm =
      "a whole number of GPUs, or a fraction that shares one: 0.001 to 0.999";
  double gpus = option.number(0, kGpusMax, kForm);
  if (gpus > 1 && gpus != std::floor(gpus)) option.wrong(kForm);
  if (gpus > 0 && gpus < 0.001) option.wrong(kForm);
  option.def.resources.gpus_milli = static_cast<int32_t>(std::lround(gpus * 1000));
}
void read_gpu_memory(const Option& option) {
  option.def.resources.gpu_memory_bytes = option.bytes();
}
void read_gpu(const Option& option) {
  constexpr const char* kForm = "a model pattern such as \"H200|H100\"";
  std::string pattern = option.text(kForm);
  std::istringstream alternatives(pattern + "|");
  for (std::string each; std::getline(alternatives, each, '|');) {
    if (each.find_first_not_of(' ') == std::string::npos) option.wrong(kForm);
  }
  option.def.resources.gpu_model = std::move(pattern);
}
void read_where(const Option& option) {
  std::string text = option.text("a label expression in a string");
  auto parsed = WorkerSelector::parse(text);
  if (!parsed.ok()) option.wrong("\"disk == ssd and not shared\": it " + parsed.error().message);
  option.def.resources.where = std::move(text);
}
void read_resources(const Option& option) {
  need_table(option, "a table such as { fpga = 1, license = 0.5 }");
  each_entry(option, {}, [&](const Option& entry, const std::string& name) {
    constexpr const char* kForm = "a number from 0.001 to 1000000000";
    if (!is_custom_resource_name(name))
      raise(option.L,
            fmt::format("task `{}`: `{}` in the option `resources` can't name one: it has "
                        "{}",
                        option.def.name, name, kCustomResourceNameForm));
    double amount =
        entry.number(0.001, static_cast<double>(kResourceQuantityMaxMilli / 1000), kForm);
    option.def.resources.custom_resources.emplace_back(name, std::llround(amount * 1000));
  });
  if (option.def.resources.custom_resources.size() > kCustomResourcesMax)
    option.wrong(fmt::format("a table of at most {} names", kCustomResourcesMax));
}
void read_ranks(const Option& option) {
  std::string form = fmt::format("a whole number of 1..{}", kRanksMax);
  if (lua_type(option.L, option.index) != LUA_TTABLE) {
    option.def.resources.ranks =
        static_cast<uint32_t>(option.integer(1, kRanksMax, form + ", or { min =, max = }"));
    return;
  }
  lua_Integer min = 1, max = 0;
  each_entry(option, {"min", "max"}, [&](const Option& entry, const std::string& name) {
    (name == "min" ? min : max) = entry.integer(1, kRanksMax, form);
  });
  auto reject = [&](const std::string& why) {
    raise(option.L, fmt::format("task `{}`: the option `ranks` is {{ min =, max = }}, {}",
                                option.def.name, why));
  };
  if (max == 0) reject("where only min may be left out");
  if (max < min) reject(fmt::format("and its min, {}, is above its max, {}", min, max));
  option.def.resources.ranks = static_cast<uint32_t>(min);
  option.def.resources.ranks_max = static_cast<uint32_t>(max);
}

// ---- policy

void read_oom(const Option& option) {
  RetryPolicy& retry = option.def.retry;
  if (lua_type(option.L, option.index) != LUA_TTABLE) {
    retry.oom_max = static_cast<uint32_t>(
        option.integer(0, kRetriesMax, "a whole number, or { max = 2, memory = \"x2\" }"));
    return;
  }
  each_entry(option, {"max", "memory"}, [&](const Option& entry, const std::string& name) {
    if (name == "max") {
      retry.oom_max = static_cast<uint32_t>(entry.integer(0, kRetriesMax, "a whole number"));
      return;
    }
    constexpr const char* kForm = "a factor from 1, such as \"x2\"";
    std::string text = entry.text(kForm);
    char* end = nullptr;
    double factor = text.size() > 1 && text[0] == 'x' ? std::strtod(text.c_str() + 1, &end) : 0;
    if (end == nullptr || *end != 0 || !(factor >= 1 && factor <= 1000)) entry.wrong(kForm);
    retry.oom_memory_factor = factor;
  });
}

void read_retries(const Option& option) {
  RetryPolicy& retry = option.def.retry;
  if (lua_type(option.L, option.index) != LUA_TTABLE) {
    retry.max = static_cast<uint32_t>(option.integer(
        0, kRetriesMax, "a whole number from 0, or { max = 3, backoff = \"1s\", … }"));
    return;
  }
  each_entry(option, {"max", "backoff", "factor", "cap", "oom", "infra"},
             [&](const Option& entry, const std::string& name) {
               constexpr const char* kCount = "a whole number from 0";
               if (name == "max") {
                 retry.max = static_cast<uint32_t>(entry.integer(0, kRetriesMax, kCount));
               } else if (name == "infra") {
                 retry.infra = static_cast<uint32_t>(entry.integer(0, kRetriesMax, kCount));
               } else if (name == "backoff") {
                 retry.backoff_ms = entry.duration_ms("1s");
               } else if (name == "cap") {
                 retry.cap_ms = entry.duration_ms("1m");
               } else if (name == "factor") {
                 retry.factor = entry.number(1, 1000, "a number from 1 to 1000");
               } else {
                 read_oom(entry);
               }
             });
}

void read_timeout(const Option& option) {
  option.def.timeout_ms = option.duration_ms("10m");
  if (option.def.timeout_ms == 0) option.wrong("a duration above 0");
}

void read_cache(const Option& option) {
  TaskDef& def = option.def;
  constexpr const char* kForm = "true, false, or a salt: a string or a whole number";
  def.cache_written = true;
  bool is_off = lua_type(option.L, option.index) == LUA_TBOOLEAN &&
                lua_toboolean(option.L, option.index) == 0;
  if (def.kind == TaskKind::service && !is_off)
    option.reject(
        " is for tasks with a result that can be computed again: a service never counts as cached. "
        "Remove it");
  if (lua_type(option.L, option.index) == LUA_TBOOLEAN) {
    def.cache = lua_toboolean(option.L, option.index);
  } else if (lua_type(option.L, option.index) == LUA_TNUMBER) {
    def.cache_salt = std::to_string(option.integer(INT64_MIN, INT64_MAX, kForm));
  } else {
    def.cache_salt = option.text(kForm);
    if (def.cache_salt.empty()) option.wrong("true, false, or a salt that is not empty");
  }
}

void read_priority(const Option& option) {
  option.def.priority =
      static_cast<int32_t>(option.integer(-1'000'000, 1'000'000, "a whole number"));
}
void read_queue(const Option& option) {
  if (option.def.kind == TaskKind::service) return read_service_queue(option);
  option.def.queue = option.text("a queue's name");
  if (option.def.queue.empty()) option.wrong("a queue's name");
}

void read_env(const Option& option) {
  need_table(option, "a table such as { TOKEN = flow.env(\"TOKEN\"), MODE = \"fast\" }");
  each_entry(option, {}, [&](const Option& entry, const std::string& name) {
    bool good = !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
                std::all_of(name.begin(), name.end(),
                            [](unsigned char c) { return std::isalnum(c) || c == '_'; });
    if (!good)
      raise(option.L, fmt::format("task `{}`: `{}` in the option `env` is not a valid name of a "
                                  "variable: expected letters, digits and `_`",
                                  option.def.name, name));
    EnvEntry& env = option.def.env.emplace_back();
    env.name = name;
    if (const void* from = test_object(entry.L, entry.index, &kEnvKey)) {
      env.from_submitter = true;
      env.value = static_cast<const char*>(from);
    } else if (lua_type(entry.L, entry.index) == LUA_TNUMBER) {
      lua_pushvalue(entry.L, entry.index);
      env.value = lua_tostring(entry.L, -1);
      lua_pop(entry.L, 1);
    } else {
      env.value = entry.text("a string, or flow.env(\"NAME\")");
      if (env.value.find('\0') != std::string::npos) entry.wrong("a string without NUL");
    }
  });
}

void read_on_error(const Option& option) {
  constexpr const char* kForm = "\"ignore\" or \"fail\"";
  std::string text = option.text(kForm);
  if (text != "ignore" && text != "fail") option.wrong(kForm);
  option.def.ignores_failure = text == "ignore";
  if (option.def.kind == TaskKind::service && option.def.ignores_failure)
    raise(option.L, fmt::format("task `{}`: a service can't have `on_error = \"ignore\"`: what "
                                "calls it would wait for an address that never comes. Use "
                                "`retries`",
                                option.def.name));
}

void read_seed(const Option& option) {
  auto seed = read_graph_value(option.L, option.index, "seed", 0, Refs::none);
  if (!seed.ok())
    raise(option.L,
          fmt::format("task `{}`: the option `seed` {}", option.def.name, seed.error().message));
  option.def.seed = encode_value(*seed);
}

// ---- shell tasks

void read_command(const Option& option) {
  if (lua_type(option.L, option.index) != LUA_TSTRING)
    option.wrong("the command as a string, [[program {argument}]]");
  size_t size;
  const char* text = lua_tolstring(option.L, option.index, &size);
  option.def.shell.command.assign(text, size);
  if (option.def.shell.command.find_first_not_of(" \t\r\n") == std::string::npos)
    option.wrong("a command that is not empty");
  if (option.def.shell.command.find('\0') != std::string::npos)
    option.wrong("a command without NUL");
}
void read_args(const Option& option) {
  option.def.shell.args =
      text_list(option, "a list of the positional arguments' names, { \"reads\", \"ref\" }");
}
// "out.bam", or { "a[1].txt", glob = false, optional = true }.
std::string read_output(const Option& entry, bool& is_plain, bool& is_optional) {
  constexpr const char* kForm =
      "a file's name or a glob, in a string, or { \"a[1].txt\", glob = false, optional = true }";
  lua_State* L = entry.L;
  if (lua_type(L, entry.index) != LUA_TTABLE) return entry.text(kForm);
  lua_pushnil(L);
  while (lua_next(L, entry.index)) {
    bool is_path = lua_isinteger(L, -2) && lua_tointeger(L, -2) == 1;
    std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    bool is_glob = key == "glob", is_policy = key == "optional";
    if ((is_glob || is_policy) && lua_type(L, -1) != LUA_TBOOLEAN)
      Option{L, entry.def, entry.name + "." + key, lua_gettop(L)}.wrong("true or false");
    if (!is_path && !is_glob && !is_policy)
      raise(L, fmt::format(
                   "task `{}`: the option `{}` is {{ a path, glob = false, optional = true }}, "
                   "and it has the unknown entry {}",
                   entry.def.name, entry.name,
                   lua_type(L, -2) == LUA_TSTRING ? fmt::format("`{}`", lua_tostring(L, -2))
                                                  : kind_text(L, lua_gettop(L) - 1)));
    if (is_glob) is_plain = !lua_toboolean(L, -1);
    if (is_policy) is_optional = lua_toboolean(L, -1);
    lua_pop(L, 1);
  }
  lua_rawgeti(L, entry.index, 1);
  std::string path = Option{L, entry.def, entry.name, lua_gettop(L)}.text(kForm);
  lua_pop(L, 1);
  return path;
}

void read_outputs(const Option& option) {
  if (option.def.kind == TaskKind::service) return read_service_outputs(option);
  need_table(option, "a table of names and files, { bam = \"out.bam\" }");
  each_entry(option, {}, [&](const Option& entry, const std::string& name) {
    bool is_plain = false, is_optional = false;
    std::string path = read_output(entry, is_plain, is_optional);
    if (path.find('\0') != std::string::npos) entry.wrong("a file's name or a glob without NUL");
    if (!inner_path_problem(path).empty())
      entry.wrong("a path inside the task's scratch folder, such as \"out.bam\"");
    if (name == "stdout")
      raise(option.L, fmt::format("task `{}`: an output can't be named `stdout`, which is the "
                                  "text that the command prints",
                                  option.def.name));
    if (is_plain) path.insert(0, 1, kPlainPathMark);
    if (is_optional) path.insert(0, kOptionalMark);
    option.def.shell.outputs.emplace_back(name, std::move(path));
  });
}
void read_shell(const Option& option) {
  option.def.shell.shell = text_list(
      option, "a list such as { \"sh\", \"-eu\", \"-c\" }, to which the command is added");
  if (option.def.shell.shell.empty()) option.wrong("a list such as { \"sh\", \"-eu\", \"-c\" }");
}
void read_stage(const Option& option) {
  if (option.text("\"copy\"") != "copy") option.wrong("\"copy\"");
  option.def.stage_copy = true;
}

// ---- what a command runs in

std::string environment_text(const Option& option, const char* form) {
  std::string text = option.text(form);
  if (text.empty() || text.find('\0') != std::string::npos) option.wrong(form);
  return text;
}
void read_before(const Option& option) {
  option.def.shell.environment.before = environment_text(
      option, "text that the shell runs before the command, such as \"source setup.sh\"");
}
void read_modules(const Option& option) {
  constexpr const char* kForm = "a list of modules such as { \"gcc/12.3\", \"cuda/12\" }";
  std::vector<std::string> names = text_list(option, kForm);
  if (names.empty()) option.wrong(kForm);
  for (const std::string& name : names) {
    bool is_name = !name.empty() && name[0] != '-' &&
                   std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > ' '; });
    if (!is_name)
      raise(option.L, fmt::format("task `{}`: `{}` in the option `modules` is not the name of a "
                                  "module: write one module in each string, such as \"gcc/12.3\"",
                                  option.def.name, name));
  }
  option.def.shell.environment.modules = std::move(names);
}
void read_venv(const Option& option) {
  option.def.shell.environment.venv.source = environment_text(
      option, "a requirements file or the folder of a Python environment, in a string");
}
void read_conda(const Option& option) {
  option.def.shell.environment.conda.source = environment_text(
      option, "an environment.yml, a lock file or the folder of an environment, in a string");
}
void read_container(const Option& option) {
  constexpr const char* kForm =
      "\"docker://IMAGE\", \"podman://IMAGE\" or the path of an image with the suffix .sif";
  std::string text = environment_text(option, kForm);
  constexpr size_t kSchemeSize = 9;  // of both
  bool has_scheme = text.starts_with("docker://") || text.starts_with("podman://");
  bool is_image = has_scheme && text.size() > kSchemeSize && text[kSchemeSize] != '-' &&
                  std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' '; });
  if (!is_image && (has_scheme || !text.ends_with(".sif"))) option.wrong(kForm);
  option.def.shell.environment.container = std::move(text);
}

struct KnownOption {
  const char* name;
  uint8_t kinds;
  bool is_of_call;  // `task:with` may change it
  void (*read)(const Option&);
};
constexpr KnownOption kOptions[] = {
    {"cpus", kAnyKind, true, read_cpus},
    {"memory", kAnyKind, true, read_memory},
    {"gpus", kAnyKind, true, read_gpus},
    {"gpu_memory", kAnyKind, true, read_gpu_memory},
    {"gpu", kAnyKind, true, read_gpu},
    {"where", kAnyKind, true, read_where},
    {"resources", kAnyKind, true, read_resources},
    {"ranks", kAnyKind, true, read_ranks},
    {"retries", kAnyKind, true, read_retries},
    {"timeout", kAnyKind, true, read_timeout},
    {"cache", kAnyKind, false, read_cache},
    {"priority", kAnyKind, true, read_priority},
    {"queue", kAnyKind, true, read_queue},
    {"env", kAnyKind, false, read_env},
    {"seed", kAnyKind, false, read_seed},
    {"on_error", kAnyKind, true, read_on_error},
    {"command", kShellOrService, false, read_command},
    {"args", kShellOrService, false, read_args},
    {"outputs", kShellOrService, false, read_outputs},
    {"shell", kShellOrService, false, read_shell},
    {"stage", kShellOnly, false, read_stage},
    {"before", kShellOrService, false, read_before},
    {"modules", kShellOrService, false, read_modules},
    {"venv", kShellOrService, false, read_venv},
    {"conda", kShellOrService, false, read_conda},
    {"container", kShellOrService, false, read_container},
    {"listen", kServiceOnly, false, read_listen},
    {"port", kServiceOnly, false, read_port},
    {"grpc", kServiceOnly, false, read_grpc},
    {"tls", kServiceOnly, false, read_tls},
    {"keys", kServiceOnly, false, read_keys},
    {"hosts", kServiceOnly, false, read_hosts},
    {"insecure", kServiceOnly, false, read_insecure},
    {"batch", kServiceOnly, false, read_batch},
    {"inputs", kServiceOnly, false, read_inputs},
    {"replicas", kServiceOnly, false, read_replicas},
    {"idempotent", kServiceOnly, false, read_idempotent},
    {"access_log", kServiceOnly, false, read_access_log},
    {"rollover", kServiceOnly, false, read_rollover},
    {"drain_delay", kServiceOnly, false, read_drain_delay},
    {"canary", kServiceOnly, false, read_canary},
    {"warmup", kServiceOnly, false, read_warmup},
    {"ready", kServiceOnly, false, read_ready},
    {"health", kServiceOnly, false, read_health},
    {"start_timeout", kServiceOnly, false, read_start_timeout},
};

/// The functions of the tasks that have an option, for messages.
const char* owners_of(const KnownOption& option) {
  if (option.kinds == kShellOnly) return "flow.shell";
  return option.kinds == kServiceOnly ? "flow.service" : "flow.shell and flow.service";
}

[[noreturn]] void unknown_option(lua_State* L, const TaskDef& def, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& option : kOptions) {
    if (option.kinds & bit(def.kind)) {
      names.emplace_back(option.name);
    } else if (name == option.name) {
      raise(L, fmt::format("task `{}`: the option `{}` belongs to {}", def.name, name,
                           owners_of(option)));
    }
  }
  raise(L, fmt::format("task `{}`: unknown option `{}`{}; the options are: {}", def.name, name,
                       did_you_mean(name, names), join(names)));
}

}  // namespace

namespace {

/// The names in the table of options, sorted. Raises for keys that are no strings.
std::vector<std::string> option_names(lua_State* L, int index, const TaskDef& def) {
  std::vector<std::string> given;
  lua_pushnil(L);
  while (lua_next(L, index)) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      raise(L, fmt::format("task `{}`: the options are a table of names, and it has the key that "
                           "is {}",
                           def.name, kind_text(L, -1)));
    given.emplace_back(lua_tostring(L, -1));
  }
  std::sort(given.begin(), given.end());
  return given;
}

/// The option's value is the function at the top, which it pops.
void set_function(lua_State* L, TaskObject& task, const KnownOption& option) {
  if (task.def.kind == TaskKind::service)
    raise(L,
          fmt::format("task `{}`: the option `{}` of a service can't be a function: a service is "
                      "placed once, for as long as its run lasts",
                      task.def.name, option.name));
  uint8_t function = resource_function(option.name);
  task.def.resource_functions |= function;
  task.resource_functions[function] = luaL_ref(L, LUA_REGISTRYINDEX);
}

/// `retries = { oom = { memory = … } }` beside a function for `memory`, which has the attempt.
void reject_growth(lua_State* L, int index, const TaskDef& def) {
  int top = lua_gettop(L);
  bool has_growth = lua_getfield(L, index, "memory") == LUA_TFUNCTION &&
                    lua_getfield(L, index, "retries") == LUA_TTABLE &&
                    lua_getfield(L, -1, "oom") == LUA_TTABLE &&
                    lua_getfield(L, -1, "memory") != LUA_TNIL;
  lua_settop(L, top);
  if (has_growth)
    raise(L, fmt::format("task `{}`: `retries.oom.memory` has no effect with a function for "
                         "`memory`: the function gets the attempt's number as its second argument",
                         def.name));
}

/// Reads the options of the table that `given` names, in the order of kOptions.
void read_given(lua_State* L, int index, TaskObject& task, const std::vector<std::string>& given) {
  for (const KnownOption& option : kOptions) {
    if (!std::binary_search(given.begin(), given.end(), option.name)) continue;
    bool is_function = lua_getfield(L, index, option.name) == LUA_TFUNCTION;
    if (is_function && resource_function(option.name) != 0) {
      set_function(L, task, option);
      continue;
    }
    option.read(Option{L, task.def, option.name, lua_gettop(L)});
    lua_pop(L, 1);
  }
  reject_growth(L, index, task.def);
  std::vector<std::string> before = std::move(task.def.written_options);
  task.def.written_options.clear();
  std::set_union(before.begin(), before.end(), given.begin(), given.end(),
                 std::back_inserter(task.def.written_options));
}

[[noreturn]] void reject_call_option(lua_State* L, const TaskDef& def, const std::string& name) {
  std::vector<std::string> names;
  for (const KnownOption& option : kOptions) {
    if (option.is_of_call) {
      names.emplace_back(option.name);
    } else if (name == option.name) {
      raise(L, fmt::format("task `{}`: `with` can't change the option `{}`, which belongs to the "
                           "definition",
                           def.name, name));
    }
  }
  raise(L, fmt::format("task `{}`: `with` has no option `{}`{}; it takes: {}", def.name, name,
                       did_you_mean(name, names), join(names)));
}

void reset_resource(TaskDef& def, uint8_t option) {
  Resources defaults;
  if (option == kCpusFunction) def.resources.cpus_milli = defaults.cpus_milli;
  if (option == kMemoryFunction) def.resources.memory_bytes = defaults.memory_bytes;
  if (option == kGpusFunction) def.resources.gpus_milli = defaults.gpus_milli;
  if (option == kGpuMemoryFunction) def.resources.gpu_memory_bytes = defaults.gpu_memory_bytes;
  if (option == kCustomResourcesFunction) def.resources.custom_resources.clear();
  if (option == kTimeoutFunction) def.timeout_ms = 0;
}

/// Sets the option back to its default, so that a table given for it replaces it as a whole.
void reset_option(const std::string& name, TaskObject& task) {
  TaskDef& def = task.def;
  if (uint8_t function = resource_function(name); function != 0) {
    def.resource_functions &= static_cast<uint8_t>(~function);
    task.resource_functions.erase(function);
    reset_resource(def, function);
  }
  if (name == "ranks") def.resources.ranks_max = 0;
  if (name == "retries") def.retry = {};
}

}  // namespace

void read_call_options(lua_State* L, int index, TaskObject& task) {
  const TaskDef& def = task.def;
  std::vector<std::string> given = option_names(L, index, def);
  for (const std::string& name : given) {
    bool is_known = std::any_of(
        std::begin(kOptions), std::end(kOptions),
        [&](const KnownOption& option) { return name == option.name && option.is_of_call; });
    if (!is_known) reject_call_option(L, def, name);
    reset_option(name, task);
  }
  read_given(L, index, task, given);
}

void read_options(lua_State* L, int index, TaskObject& task) {
  TaskDef& def = task.def;
  std::vector<std::string> given = option_names(L, index, def);
  if (def.kind == TaskKind::shell || std::ranges::binary_search(given, "command"))
    def.shell.shell = {"bash", "-euo", "pipefail", "-c"};
  for (const std::string& name : given) {
    bool known =
        std::any_of(std::begin(kOptions), std::end(kOptions), [&](const KnownOption& option) {
          return name == option.name && (option.kinds & bit(def.kind)) != 0;
        });
    if (!known) unknown_option(L, def, name);
  }
  read_given(L, index, task, given);
  if (def.kind == TaskKind::shell && def.shell.command.empty())
    raise(L,
          fmt::format("task `{}`: flow.shell needs the option `command`, [[program {{argument}}]]",
                      def.name));
  if (def.kind != TaskKind::service) return;
  task.gate = gate_of_options(L, index);
  check_service_options(L, def, given);
}

void read_resource_option(lua_State* L, int index, TaskDef& def, uint8_t option) {
  for (const KnownOption& known : kOptions) {
    if (resource_function(known.name) != option) continue;
    reset_resource(def, option);
    known.read(Option{L, def, known.name, index});
  }
}

}  // namespace flow::lua
