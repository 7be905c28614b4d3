#include "engine/plan/task_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "engine/base/size_units.hpp"
#include "engine/plan/worker_selector.hpp"

namespace flow {

namespace {

constexpr double kCpusMax = 100'000, kGpusMax = 10'000;
constexpr int64_t kRetriesMax = 1'000'000, kPriorityMax = 1'000'000;
constexpr size_t kTextMax = 10'000;  // bytes
constexpr std::string_view kEnvPrefix = "env.";

/// An option that is being read.
struct Option {
  std::string name;
  const Value& value;

  Error wrong(const std::string& form) const {
    constexpr size_t kShown = 100;
    std::string given = value.is_nil() ? "nothing" : to_json(value).substr(0, kShown);
    return user_error(fmt::format("the option `{}` must be {}, but is `{}`", name, form, given));
  }
  Result<std::string> text(const std::string& form) const {
    if (value.kind() != Value::Kind::string || value.as_string().size() > kTextMax)
      return wrong(form);
    return value.as_string();
  }
  Result<double> number(double min, double max, const std::string& form) const {
    bool is_number = value.kind() == Value::Kind::integer || value.kind() == Value::Kind::number;
    if (!is_number || !(value.as_number() >= min && value.as_number() <= max)) return wrong(form);
    return value.as_number();
  }
  Result<int64_t> integer(int64_t min, int64_t max, const std::string& form) const {
    bool fits = value.kind() == Value::Kind::integer && value.as_integer() >= min &&
                value.as_integer() <= max;
    if (!fits) return wrong(form);
    return value.as_integer();
  }
  Result<int64_t> bytes() const {
    constexpr const char* kForm = "a size such as \"2GiB\" or a number of bytes";
    if (value.kind() == Value::Kind::integer) return integer(1, int64_t{1} << 62, kForm);
    auto given = text(kForm);
    FLOW_TRY(given);
    auto size = parse_bytes(*given);
    if (!size.ok()) return clause(size.error());
    if (*size == 0) return wrong("a size above 0");
    return *size;
  }
  Result<int64_t> duration_ms(const char* example) const {
    auto given = text(fmt::format("a duration such as \"{}\"", example));
    FLOW_TRY(given);
    auto duration = parse_duration_ms(*given);
    if (!duration.ok()) return clause(duration.error());
    return *duration;
  }
  Error clause(const Error& error) const {
    return user_error(fmt::format("the option `{}`: {}", name, error.message));
  }
  Option entry(const std::string& key, const Value& of) const { return {name + "." + key, of}; }
};

template <typename From, typename To>
Status store(Result<From> from, To& to) {
  FLOW_TRY(from);
  to = static_cast<To>(std::move(*from));
  return {};
}

/// Calls `read(entry, name)` for each entry of the table. `known` are the names that it may have;
/// empty: any.
template <typename Read>
Status each_entry(const Option& option, const std::vector<std::string>& known, Read read) {
  bool is_table = option.value.kind() == Value::Kind::table && option.value.as_table().list.empty();
  if (!is_table) return option.wrong("a table of names and values");
  for (const auto& [key, value] : option.value.as_table().fields) {
    if (key.kind() != Value::Kind::string) return option.wrong("a table of names and values");
    const std::string& name = key.as_string();
    bool is_known = known.empty() || std::ranges::find(known, name) != known.end();
    if (!is_known) {
      std::string near = nearest_name(name, known);
      return user_error(fmt::format(
          "the option `{}` has the unknown entry `{}`{}; it has: {}", option.name, name,
          near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near), fmt::join(known, ", ")));
    }
    FLOW_TRY(read(option.entry(name, value), name));
  }
  return {};
}

Status set_cpus(TaskDef& def, const Option& option) {
  auto cpus = option.number(0.001, HUGE_VAL, "a number of CPUs, at least 0.001");
  FLOW_TRY(cpus);
  def.resources.cpus_milli = static_cast<int32_t>(std::lround(std::min(*cpus, kCpusMax) * 1000));
  return {};
}

Status set_gpus(TaskDef& def, const Option& option) {
  constexpr const char* kForm =
      "a whole number of GPUs, or a fraction that shares one: 0.001 to 0.999";
  auto gpus = option.number(0, kGpusMax, kForm);
  FLOW_TRY(gpus);
  bool is_part = *gpus > 0 && *gpus<0.001, is_mixed = *gpus> 1 && *gpus != std::floor(*gpus);
  if (is_part || is_mixed) return option.wrong(kForm);
  def.resources.gpus_milli = static_cast<int32_t>(std::lround(*gpus * 1000));
  return {};
}

Status set_gpu(TaskDef& def, const Option& option) {
  constexpr const char* kForm = "a model pattern such as \"H200|H100\"";
  auto pattern = option.text(kForm);
  FLOW_TRY(pattern);
  std::istringstream alternatives(*pattern + "|");
  for (std::string each; std::getline(alternatives, each, '|');)
    if (each.find_first_not_of(' ') == std::string::npos) return option.wrong(kForm);
  def.resources.gpu_model = std::move(*pattern);
  return {};
}

Status set_where(TaskDef& def, const Option& option) {
  auto text = option.text("a label expression in a string");
  FLOW_TRY(text);
  auto parsed = WorkerSelector::parse(*text);
  if (!parsed.ok())
    return option.wrong("\"disk == ssd and not shared\": it " + parsed.error().message);
  def.resources.where = std::move(*text);
  return {};
}

Status set_resources(TaskDef& def, const Option& option) {
  std::vector<std::pair<std::string, double>> amounts;
  FLOW_TRY(each_entry(option, {}, [&](const Option& entry, const std::string& name) -> Status {
    auto amount = entry.number(0.001, static_cast<double>(kResourceQuantityMaxMilli) / 1000,
                               "a number from 0.001 to 1000000000");
    FLOW_TRY(amount);
    amounts.emplace_back(name, *amount);
    return {};
  }));
  auto quantities = quantities_of(amounts);
  if (!quantities.ok()) return option.clause(quantities.error());
  def.resources.custom_resources = std::move(*quantities);
  return {};
}

Status set_oom(RetryPolicy& retry, const Option& option) {
  constexpr const char* kCount = "a whole number, or { max = 2, memory = \"x2\" }";
  if (option.value.kind() == Value::Kind::integer)
    return store(option.integer(0, kRetriesMax, kCount), retry.oom_max);
  return each_entry(
      option, {"max", "memory"}, [&](const Option& entry, const std::string& name) -> Status {
        if (name == "max") return store(entry.integer(0, kRetriesMax, kCount), retry.oom_max);
        constexpr const char* kForm = "a factor from 1, such as \"x2\"";
        auto text = entry.text(kForm);
        FLOW_TRY(text);
        char* end = nullptr;
        double factor =
            text->size() > 1 && text->front() == 'x' ? std::strtod(text->c_str() + 1, &end) : 0;
        if (end == nullptr || *end != 0 || !(factor >= 1 && factor <= 1000))
          return entry.wrong(kForm);
        retry.oom_memory_factor = factor;
        return {};
      });
}

Status set_retries(TaskDef& def, const Option& option) {
  RetryPolicy retry;
  if (option.value.kind() != Value::Kind::table) {
    FLOW_TRY(store(
        option.integer(0, kRetriesMax, "a whole number from 0, or { max = 3, backoff = \"1s\" }"),
        retry.max));
  } else {
    constexpr const char* kCount = "a whole number from 0";
    FLOW_TRY(each_entry(option, {"max", "backoff", "factor", "cap", "oom", "infra"},
                        [&](const Option& entry, const std::string& name) -> Status {
                          if (name == "max")
                            return store(entry.integer(0, kRetriesMax, kCount), retry.max);
                          if (name == "infra")
                            return store(entry.integer(0, kRetriesMax, kCount), retry.infra);
                          if (name == "backoff")
                            return store(entry.duration_ms("1s"), retry.backoff_ms);
                          if (name == "cap") return store(entry.duration_ms("1m"), retry.cap_ms);
                          if (name == "factor")
                            return store(entry.number(1, 1000, "a number from 1 to 1000"),
                                         retry.factor);
                          return set_oom(retry, entry);
                        }));
  }
  def.retry = retry;
  return {};
}

Status set_timeout(TaskDef& def, const Option& option) {
  auto duration = option.duration_ms("10m");
  FLOW_TRY(duration);
  if (*duration == 0) return option.wrong("a duration above 0");
  def.timeout_ms = *duration;
  return {};
}

Status set_queue(TaskDef& def, const Option& option) {
  auto queue = option.text("a queue's name");
  FLOW_TRY(queue);
  if (queue->empty()) return option.wrong("a queue's name");
  def.queue = std::move(*queue);
  return {};
}

bool is_word(const std::string& text) {
  return !text.empty() && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' '; });
}

/// A text that is not empty and has no NUL.
Status set_command_text(const Option& option, const std::string& form, std::string& to) {
  auto text = option.text(form);
  FLOW_TRY(text);
  if (text->empty() || text->find('\0') != std::string::npos) return option.wrong(form);
  to = std::move(*text);
  return {};
}

Status set_modules(TaskDef& def, const Option& option) {
  constexpr const char* kForm = "a list of modules such as [\"gcc/12.3\", \"cuda/12\"]";
  bool is_list = option.value.kind() == Value::Kind::table &&
                 option.value.as_table().fields.empty() && !option.value.as_table().list.empty();
  if (!is_list) return option.wrong(kForm);
  std::vector<std::string> names;
  for (const Value& name : option.value.as_table().list) {
    if (name.kind() != Value::Kind::string || !is_word(name.as_string()))
      return option.wrong(kForm);
    names.push_back(name.as_string());
  }
  def.shell.environment.modules = std::move(names);
  return {};
}

Status set_container(TaskDef& def, const Option& option) {
  constexpr const char* kForm =
      "\"docker://IMAGE\", \"podman://IMAGE\" or the path of an image with the suffix .sif";
  std::string image;
  FLOW_TRY(set_command_text(option, kForm, image));
  constexpr size_t kSchemeSize = 9;  // of both
  bool has_scheme = image.starts_with("docker://") || image.starts_with("podman://");
  bool is_image = has_scheme ? is_word(image.substr(kSchemeSize)) : image.ends_with(".sif");
  if (!is_image) return option.wrong(kForm);
  def.shell.environment.container = std::move(image);
  return {};
}

Status set_command_option(TaskDef& def, const Option& option) {
  CommandEnvironment& environment = def.shell.environment;
  if (option.name == "modules") return set_modules(def, option);
  if (option.name == "container") return set_container(def, option);
  if (option.name == "before")
    return set_command_text(option, "text that the shell runs before the command",
                            environment.before);
  if (option.name == "venv")
    return set_command_text(option, "a requirements file or the folder of a Python environment",
                            environment.venv.source);
  return set_command_text(option, "an environment.yml, a lock file or the folder of an environment",
                          environment.conda.source);
}

bool is_variable_name(const std::string& name) {
  bool starts_with_digit = !name.empty() && name[0] >= '0' && name[0] <= '9';
  return !name.empty() && !starts_with_digit &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

Status set_variable(TaskDef& def, const Option& option) {
  EnvEntry entry;
  entry.name = option.name.substr(kEnvPrefix.size());
  if (!is_variable_name(entry.name))
    return user_error(
        fmt::format("`{}` in the option `env` is not a valid name of a variable: "
                    "expected letters, digits and `_`",
                    entry.name));
  const Value* secret = option.value.find("env");
  if (secret != nullptr && secret->kind() == Value::Kind::string) {
    entry.from_submitter = true;
    entry.value = secret->as_string();
    bool is_name = !entry.value.empty() && entry.value.find('=') == std::string::npos;
    if (!is_name) return option.wrong("{ env = \"NAME\" }, the name of a variable");
  } else if (option.value.kind() == Value::Kind::string) {
    entry.value = option.value.as_string();
  } else {
    constexpr const char* kForm = "a string, or { env = \"NAME\" } for a secret";
    FLOW_TRY(option.number(-HUGE_VAL, HUGE_VAL, kForm));
    entry.value = to_json(option.value);
  }
  if (entry.value.find('\0') != std::string::npos) return option.wrong("a string without NUL");
  auto old = std::ranges::find(def.env, entry.name, &EnvEntry::name);
  if (old != def.env.end()) {
    *old = std::move(entry);
    return {};
  }
  auto next = std::ranges::upper_bound(def.env, entry.name, {}, &EnvEntry::name);
  def.env.insert(next, std::move(entry));
  return {};
}

Value number_of_milli(int64_t milli) {
  return milli % 1000 == 0 ? Value(milli / 1000) : Value(static_cast<double>(milli) / 1000);
}

/// "2GiB" in the largest unit of which it is a whole number; nil for 0.
Value bytes_value(int64_t bytes) {
  if (bytes == 0) return {};
  const char* const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; unit + 1 < std::size(units) && bytes % 1024 == 0; unit++) bytes /= 1024;
  return unit == 0 ? Value(bytes) : Value(fmt::format("{}{}", bytes, units[unit]));
}
Value text_value(const std::string& text) { return text.empty() ? Value() : Value(text); }

Value retries_value(const RetryPolicy& retry) {
  const RetryPolicy plain;
  bool is_count = retry.backoff_ms == plain.backoff_ms && retry.factor == plain.factor &&
                  retry.cap_ms == plain.cap_ms && retry.oom_max == plain.oom_max &&
                  retry.oom_memory_factor == plain.oom_memory_factor && retry.infra == plain.infra;
  if (is_count) return Value(retry.max);
  return Value::map(
      {{"max", Value(retry.max)},
       {"backoff", Value(format_duration(retry.backoff_ms))},
       {"factor", Value(retry.factor)},
       {"cap", Value(format_duration(retry.cap_ms))},
       {"oom", Value::map({{"max", Value(retry.oom_max)},
                           {"memory", Value(fmt::format("x{}", retry.oom_memory_factor))}})},
       {"infra", Value(retry.infra)}});
}

Value resources_value(const ResourceQuantities& quantities) {
  std::vector<std::pair<Value, Value>> fields;
  for (const auto& [name, milli] : quantities)
    fields.emplace_back(Value(name), number_of_milli(milli));
  return fields.empty() ? Value() : Value::map(std::move(fields));
}

Value variable_value(const EnvEntry* entry) {
  if (entry == nullptr) return {};
  return entry->from_submitter ? Value::map({{"env", Value(entry->value)}}) : Value(entry->value);
}

}  // namespace

const std::vector<std::string>& task_option_names() {
  static const std::vector<std::string> names = {
      "cpus",    "memory",   "gpus",  "gpu_memory", "gpu",     "where", "resources", "retries",
      "timeout", "priority", "queue", "before",     "modules", "venv",  "conda",     "container"};
  return names;
}

uint8_t resource_function(std::string_view option) {
  if (option == "cpus") return kCpusFunction;
  if (option == "memory") return kMemoryFunction;
  if (option == "gpus") return kGpusFunction;
  if (option == "gpu_memory") return kGpuMemoryFunction;
  if (option == "resources") return kCustomResourcesFunction;
  return option == "timeout" ? kTimeoutFunction : 0;
}

bool is_command_option(const std::string& name) {
  return name == "before" || name == "modules" || name == "venv" || name == "conda" ||
         name == "container";
}

Status set_task_option(TaskDef& def, const std::string& name, const Value& value) {
  Option option{name, value};
  def.resource_functions &= static_cast<uint8_t>(~resource_function(name));
  if (name.starts_with(kEnvPrefix)) return set_variable(def, option);
  if (name == "cpus") return set_cpus(def, option);
  if (name == "memory") return store(option.bytes(), def.resources.memory_bytes);
  if (name == "gpus") return set_gpus(def, option);
  if (name == "gpu_memory") return store(option.bytes(), def.resources.gpu_memory_bytes);
  if (name == "gpu") return set_gpu(def, option);
  if (name == "where") return set_where(def, option);
  if (name == "resources") return set_resources(def, option);
  if (name == "retries") return set_retries(def, option);
  if (name == "timeout") return set_timeout(def, option);
  if (name == "priority")
    return store(option.integer(-kPriorityMax, kPriorityMax, "a whole number"), def.priority);
  if (name == "queue") return set_queue(def, option);
  if (is_command_option(name)) return set_command_option(def, option);
  return internal_error(fmt::format("a task has no option `{}` that can be set", name));
}

Value task_option(const TaskDef& def, const std::string& name) {
  const Resources& needs = def.resources;
  if ((def.resource_functions & resource_function(name)) != 0) return Value("a function");
  if (name.starts_with(kEnvPrefix))
    return variable_value(find_variable(def, name.substr(kEnvPrefix.size())));
  if (name == "cpus") return number_of_milli(needs.cpus_milli);
  if (name == "memory") return bytes_value(needs.memory_bytes);
  if (name == "gpus") return number_of_milli(needs.gpus_milli);
  if (name == "gpu_memory") return bytes_value(needs.gpu_memory_bytes);
  if (name == "gpu") return text_value(needs.gpu_model);
  if (name == "where") return text_value(needs.where);
  if (name == "resources") return resources_value(needs.custom_resources);
  if (name == "retries") return retries_value(def.retry);
  if (name == "timeout")
    return def.timeout_ms == 0 ? Value() : Value(format_duration(def.timeout_ms));
  if (name == "priority") return Value(int64_t{def.priority});
  if (name == "queue" && def.kind == TaskKind::service)
    return Value(int64_t{def.service.queue_max});
  if (name == "queue") return Value(def.queue);
  const CommandEnvironment& environment = def.shell.environment;
  if (name == "before") return text_value(environment.before);
  if (name == "venv") return text_value(environment.venv.source);
  if (name == "conda") return text_value(environment.conda.source);
  if (name == "container") return text_value(environment.container);
  if (name == "modules" && !environment.modules.empty())
    return Value::list({environment.modules.begin(), environment.modules.end()});
  return {};
}

const EnvEntry* find_variable(const TaskDef& def, const std::string& name) {
  auto entry = std::ranges::find(def.env, name, &EnvEntry::name);
  return entry == def.env.end() ? nullptr : &*entry;
}

}  // namespace flow
