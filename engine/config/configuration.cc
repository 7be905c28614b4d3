#include "engine/config/configuration.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "engine/base/glob.hpp"
#include "engine/config/toml_reader.hpp"

namespace flow {

namespace {

enum class Form : uint8_t {
  text,
  integer,
  number,
  boolean,
  size,       // text, or a whole number of bytes
  retries,    // a whole number, or a table
  resources,  // names and numbers
  env,        // names and texts, numbers or secrets: an option each
  texts,      // a list of strings
  secret,     // { env = NAME }
  text_or_secret,
  statuses,      // a list of those with which a run ends
  named_prices,  // names and numbers: an option each
  labels,        // names and tables of prices
};

struct Key {
  const char* name;
  Form form;
};

constexpr Key kTaskKeys[] = {
    {"cpus", Form::number},         {"memory", Form::size},     {"gpus", Form::number},
    {"gpu_memory", Form::size},     {"gpu", Form::text},        {"where", Form::text},
    {"resources", Form::resources}, {"retries", Form::retries}, {"timeout", Form::text},
    {"priority", Form::integer},    {"queue", Form::text},      {"env", Form::env},
    {"before", Form::text},         {"modules", Form::texts},   {"venv", Form::text},
    {"conda", Form::text},          {"container", Form::text}};
constexpr Key kRunKeys[] = {{"state", Form::text},      {"jobs", Form::integer},
                            {"workers", Form::integer}, {"on", Form::text},
                            {"grace", Form::text},      {"fail_fast", Form::boolean},
                            {"strict", Form::boolean},  {"offline", Form::boolean},
                            {"logs", Form::boolean},    {"budget", Form::text}};
constexpr Key kSlurmKeys[] = {
    {"nodes", Form::integer},         {"elastic", Form::text}, {"idle", Form::text},
    {"gpus_per_node", Form::integer}, {"time", Form::text},    {"partition", Form::text},
    {"account", Form::text},          {"qos", Form::text},     {"constraint", Form::text},
    {"arguments", Form::texts},       {"listen", Form::text}};
constexpr Key kHeadKeys[] = {{"address", Form::text}, {"secret_file", Form::text}};
constexpr Key kPriceKeys[] = {{"currency", Form::text},         {"cpu_hour", Form::number},
                              {"memory_gb_hour", Form::number}, {"gpu_hour", Form::named_prices},
                              {"egress_gb", Form::number},      {"label", Form::labels},
                              {"include", Form::text}};
constexpr Key kNotifyKeys[] = {{"on_end", Form::text},
                               {"webhook", Form::text_or_secret},
                               {"command", Form::text},
                               {"secret", Form::secret},
                               {"on", Form::statuses}};

constexpr ConfigTable kTables[] = {ConfigTable::tasks, ConfigTable::defaults, ConfigTable::slurm,
                                   ConfigTable::head,  ConfigTable::prices,   ConfigTable::notify};

template <size_t n>
void add_keys(const Key (&keys)[n], std::vector<Key>& to) {
  to.insert(to.end(), std::begin(keys), std::end(keys));
}

std::vector<Key> keys_of(ConfigTable table) {
  std::vector<Key> keys;
  if (table == ConfigTable::tasks || table == ConfigTable::defaults) add_keys(kTaskKeys, keys);
  if (table == ConfigTable::defaults) add_keys(kRunKeys, keys);
  if (table == ConfigTable::slurm) add_keys(kSlurmKeys, keys);
  if (table == ConfigTable::head) add_keys(kHeadKeys, keys);
  if (table == ConfigTable::prices) add_keys(kPriceKeys, keys);
  if (table == ConfigTable::notify) add_keys(kNotifyKeys, keys);
  return keys;
}

/// "nodes, elastic and idle": for messages.
std::string words(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string nearest_text(const std::string& name, const std::vector<std::string>& names) {
  std::string near = nearest_name(name, names);
  return near.empty() ? "" : fmt::format(". Did you mean `{}`?", near);
}

/// A name as TOML has it: in quotes unless it is a bare key.
std::string quoted(const std::string& name) {
  bool is_bare = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return is_bare ? name : to_json(Value(name));
}

bool is_number(const TomlNode& node) {
  return node.kind == TomlNode::Kind::integer ||
         (node.kind == TomlNode::Kind::number && std::isfinite(node.value.as_number()));
}

bool is_secret(const TomlNode& node) {
  return node.kind == TomlNode::Kind::table && node.items.size() == 1 &&
         node.items[0].key == "env" && node.items[0].kind == TomlNode::Kind::text &&
         !node.items[0].value.as_string().empty();
}

/// The statuses with which a run ends.
bool is_end_status(const TomlNode& node) {
  if (node.kind != TomlNode::Kind::text) return false;
  const std::string& text = node.value.as_string();
  return text == "succeeded" || text == "failed" || text == "cancelled";
}

/// The description of the form if `node` does not fit it; else null.
const char* expected_form(Form form, const TomlNode& node) {
  using Kind = TomlNode::Kind;
  auto all = [&](auto fits) { return std::ranges::all_of(node.items, fits); };
  auto is_text = [](const TomlNode& each) { return each.kind == Kind::text; };
  switch (form) {
    case Form::text:
      return node.kind == Kind::text ? nullptr : "a string";
    case Form::integer:
      return node.kind == Kind::integer ? nullptr : "a whole number";
    case Form::number:
    case Form::named_prices:
      return is_number(node) ? nullptr : "a number";
    case Form::boolean:
      return node.kind == Kind::boolean ? nullptr : "true or false";
    case Form::size:
      return node.kind == Kind::text || node.kind == Kind::integer
                 ? nullptr
                 : "a size such as \"2GiB\" or a number of bytes";
    case Form::retries:
      return node.kind == Kind::integer || node.kind == Kind::table
                 ? nullptr
                 : "a whole number, or a table such as { max = 3, backoff = \"1s\" }";
    case Form::resources:
      return node.kind == Kind::table && all(is_number)
                 ? nullptr
                 : "a table such as { fpga = 1, license = 0.5 }";
    case Form::env:
      return node.kind == Kind::text || is_number(node) || is_secret(node)
                 ? nullptr
                 : "a string, or { env = \"NAME\" } for a secret";
    case Form::texts:
      return node.kind == TomlNode::Kind::list && all(is_text) ? nullptr : "a list of strings";
    case Form::text_or_secret:
      return node.kind == Kind::text || is_secret(node)
                 ? nullptr
                 : "a string, or { env = \"NAME\" } for a secret";
    case Form::statuses:
      return node.kind == TomlNode::Kind::list && !node.items.empty() && all(is_end_status)
                 ? nullptr
                 : "a list of `succeeded`, `failed` and `cancelled`";
    case Form::secret:
      return is_secret(node) ? nullptr : "{ env = \"NAME\" }, a variable of the environment";
    case Form::labels:
      break;
  }
  return nullptr;
}

/// Reads the tables of one file.
class FileReader {
 public:
  explicit FileReader(std::string path) : path_(std::move(path)) {}

  struct Profile {
    std::string name;  // "": the tables outside of profiles
    std::vector<ConfigSetting> settings;
  };

  Result<std::vector<Profile>> read(std::string_view text) {
    auto root = read_toml(text, path_);
    FLOW_TRY(root);
    std::vector<Profile> profiles(1);
    for (const TomlNode& table : root->items) {
      if (table.key != "profile") {
        FLOW_TRY(read_table(table, "", profiles[0].settings));
        continue;
      }
      FLOW_TRY(need_table(table, "profile"));
      for (const TomlNode& each : table.items) {
        FLOW_TRY(need_table(each, "profile." + quoted(each.key)));
        Profile& profile = profiles.emplace_back();
        profile.name = each.key;
        for (const TomlNode& inner : each.items)
          FLOW_TRY(read_table(inner, "profile." + quoted(each.key) + ".", profile.settings));
      }
    }
    return profiles;
  }

  Result<std::vector<ConfigSetting>> read_prices(std::string_view text) {
    auto root = read_toml(text, path_);
    FLOW_TRY(root);
    std::vector<ConfigSetting> settings;
    FLOW_TRY(read_options(*root, ConfigTable::prices, "", "prices", settings));
    for (const ConfigSetting& each : settings)
      if (each.option == "include")
        return user_error(each.location() + "a file of prices cannot include another");
    return settings;
  }

 private:
  using Settings = std::vector<ConfigSetting>;

  Error problem(const TomlNode& at, const std::string& what) const {
    return user_error(fmt::format("{}:{}: {}", path_, at.line, what));
  }

  Status need_table(const TomlNode& node, const std::string& name) const {
    if (node.kind == TomlNode::Kind::table) return {};
    return problem(node, fmt::format("`{}` must be a table, [{}], but is {}", name, name,
                                     kind_text(node.kind)));
  }

  Status read_table(const TomlNode& node, const std::string& prefix, Settings& to) const {
    for (ConfigTable table : kTables) {
      if (node.key != table_name(table)) continue;
      FLOW_TRY(need_table(node, prefix + node.key));
      if (table == ConfigTable::tasks) return read_tasks(node, prefix, to);
      return read_options(node, table, "", prefix + node.key, to);
    }
    std::vector<std::string> names;
    for (ConfigTable table : kTables) names.emplace_back(table_name(table));
    if (prefix.empty()) names.emplace_back("profile");
    const char* what = node.kind == TomlNode::Kind::table ? "table" : "key";
    return problem(node,
                   fmt::format("unknown {} `{}`; the tables are: {}{}", what, prefix + node.key,
                               words(names), nearest_text(node.key, names)));
  }

  Status read_tasks(const TomlNode& node, const std::string& prefix, Settings& to) const {
    for (const TomlNode& task : node.items) {
      std::string header = prefix + "tasks." + quoted(task.key);
      FLOW_TRY(need_table(task, header));
      if (!expand_braces(task.key).ok() || task.key.empty())
        return problem(task, fmt::format("`{}` is not a pattern of tasks' names", task.key));
      FLOW_TRY(read_options(task, ConfigTable::tasks, task.key, header, to));
    }
    return {};
  }

  Status read_options(const TomlNode& node, ConfigTable table, const std::string& pattern,
                      const std::string& header, Settings& to) const {
    std::vector<Key> keys = keys_of(table);
    for (const TomlNode& option : node.items) {
      auto key =
          std::ranges::find_if(keys, [&](const Key& each) { return option.key == each.name; });
      if (key == keys.end()) {
        std::vector<std::string> names;
        for (const Key& each : keys) names.emplace_back(each.name);
        return problem(option,
                       fmt::format("[{}] has no option `{}`; its options are: {}{}", header,
                                   option.key, words(names), nearest_text(option.key, names)));
      }
      ConfigSetting setting;
      setting.table = table;
      setting.pattern = pattern;
      setting.header = "[" + header + "]";
      setting.header_line = node.line;
      FLOW_TRY(read_option(option, key->form, std::move(setting), to));
    }
    return {};
  }

  Status read_option(const TomlNode& node, Form form, ConfigSetting setting, Settings& to) const {
    setting.option += setting.option.empty() ? node.key : "." + node.key;
    if (form == Form::labels) return read_labels(node, std::move(setting), to);
    if (form == Form::env || form == Form::named_prices) {
      FLOW_TRY(need_table(node, setting.option));
      for (const TomlNode& entry : node.items) {
        ConfigSetting each = setting;
        each.option += "." + entry.key;
        FLOW_TRY(add(entry, form, std::move(each), to));
      }
      return {};
    }
    return add(node, form, std::move(setting), to);
  }

  /// [prices.label."pool=spot"]: prices of workers with this label.
  Status read_labels(const TomlNode& node, ConfigSetting setting, Settings& to) const {
    FLOW_TRY(need_table(node, "prices.label"));
    for (const TomlNode& label : node.items) {
      std::string name = "label." + quoted(label.key);
      FLOW_TRY(need_table(label, "prices." + name));
      Settings prices;
      std::string header = setting.header.substr(1, setting.header.size() - 2) + "." + name;
      FLOW_TRY(read_options(label, ConfigTable::prices, "", header, prices));
      for (ConfigSetting& each : prices) {
        if (each.option.starts_with("label.") || each.option == "include")
          return user_error(fmt::format("{}{} has no option `{}`: only [prices] has it",
                                        each.location(), each.header, each.option));
        each.option.insert(0, name + ".");
        to.push_back(std::move(each));
      }
    }
    return {};
  }

  Status add(const TomlNode& node, Form form, ConfigSetting setting, Settings& to) const {
    if (const char* expected = expected_form(form, node)) {
      bool has_other_item =
          node.kind == TomlNode::Kind::list && std::string_view(expected).starts_with("a list");
      return problem(
          node, fmt::format("{} `{}` must be {}, but {}", setting.header, setting.option, expected,
                            has_other_item ? "this list is empty or has another item"
                                           : "is " + std::string(kind_text(node.kind))));
    }
    bool is_empty = node.kind == TomlNode::Kind::text && node.value.as_string().empty();
    if (is_empty && form != Form::env)
      return problem(node, fmt::format("{} `{}` is empty: give it a value, or remove it",
                                       setting.header, setting.option));
    bool is_price = setting.table == ConfigTable::prices && is_number(node);
    if (is_price && node.value.as_number() < 0)
      return problem(node, fmt::format("{} `{}` is a price, and it is below 0", setting.header,
                                       setting.option));
    setting.value = value_of(node);
    setting.file = path_;
    setting.line = node.line;
    to.push_back(std::move(setting));
    return {};
  }

  const std::string path_;
};

/// Within one rank a longer pattern wins, then the later one. Options outside of [tasks] keep their
/// order: a table has each once.
void sort_by_pattern(std::vector<ConfigSetting>& settings) {
  std::ranges::stable_sort(settings, [](const ConfigSetting& a, const ConfigSetting& b) {
    if (a.pattern.size() != b.pattern.size()) return a.pattern.size() > b.pattern.size();
    return !a.pattern.empty() && a.line > b.line;
  });
}

void append(std::vector<ConfigSetting>& from, std::vector<ConfigSetting>& to) {
  sort_by_pattern(from);
  std::ranges::move(from, std::back_inserter(to));
}

/// Appends the prices of the file that `include` names: the other files outrank it.
Status add_included_prices(const ConfigOptions& config, Configuration& configuration) {
  const ConfigSetting* include = price_include(configuration);
  if (include == nullptr) return {};
  std::string path = included_path(*include);
  auto file = std::ranges::find_if(
      config.files, [&](const ConfigFile& each) { return each.is_prices && each.path == path; });
  if (file == config.files.end()) return {};
  auto prices = read_price_file(*file);
  FLOW_TRY(prices);
  std::ranges::move(*prices, std::back_inserter(configuration.settings));
  return {};
}

}  // namespace

const ConfigSetting* price_include(const Configuration& configuration) {
  auto include = std::ranges::find_if(configuration.settings, [](const ConfigSetting& setting) {
    return setting.table == ConfigTable::prices && setting.option == "include";
  });
  return include == configuration.settings.end() ? nullptr : &*include;
}

std::string included_path(const ConfigSetting& include) {
  std::filesystem::path folder = std::filesystem::path(include.file).parent_path();
  return (folder / include.value.as_string()).string();
}

std::vector<std::string> price_files_of(const ConfigFile& file) {
  std::vector<std::string> paths;
  auto profiles = FileReader(file.path).read(file.text);
  if (!profiles.ok()) return paths;  // reported when it is used
  for (const FileReader::Profile& profile : *profiles)
    for (const ConfigSetting& each : profile.settings)
      if (each.table == ConfigTable::prices && each.option == "include")
        paths.push_back(included_path(each));
  return paths;
}

const char* table_name(ConfigTable table) {
  switch (table) {
    case ConfigTable::tasks:
      return "tasks";
    case ConfigTable::defaults:
      return "defaults";
    case ConfigTable::slurm:
      return "slurm";
    case ConfigTable::head:
      return "head";
    case ConfigTable::prices:
      return "prices";
    case ConfigTable::notify:
      return "notify";
  }
  return "";
}

std::string ConfigSetting::origin() const {
  return fmt::format("{}:{}{}{}", file, line, header.empty() ? "" : " ", header);
}
std::string ConfigSetting::location() const { return fmt::format("{}:{}: ", file, line); }

Result<Configuration> read_configuration(const ConfigOptions& config) {
  Configuration configuration;
  std::vector<ConfigSetting> base;
  std::vector<std::string> profiles;
  for (const ConfigFile& file : config.files) {
    if (file.is_prices) continue;
    auto read = FileReader(file.path).read(file.text);
    FLOW_TRY(read);
    for (FileReader::Profile& profile : *read) {
      if (!profile.name.empty()) profiles.push_back(profile.name);
      bool is_chosen = !profile.name.empty() && profile.name == config.profile;
      append(profile.settings, profile.name.empty() ? base
                               : is_chosen          ? configuration.settings
                                                    : configuration.others);
    }
  }
  std::ranges::move(base, std::back_inserter(configuration.settings));
  FLOW_TRY(add_included_prices(config, configuration));
  bool is_found =
      config.profile.empty() || std::ranges::find(profiles, config.profile) != profiles.end();
  if (is_found) return configuration;
  std::ranges::sort(profiles);
  profiles.erase(std::unique(profiles.begin(), profiles.end()), profiles.end());
  if (profiles.empty())
    return user_error(fmt::format("there is no profile `{}`: {}", config.profile,
                                  config.files.empty()
                                      ? "no flow.toml was found"
                                      : fmt::format("`{}` has no profiles", config.files[0].path)));
  return user_error(fmt::format("there is no profile `{}`; the profiles are: {}{}", config.profile,
                                words(profiles), nearest_text(config.profile, profiles)));
}

Result<std::vector<ConfigSetting>> read_price_file(const ConfigFile& file) {
  auto settings = FileReader(file.path).read_prices(file.text);
  FLOW_TRY(settings);
  for (ConfigSetting& each : *settings) each.header.clear();
  return settings;
}

bool is_task_option(const std::string& option) {
  std::string name = option.substr(0, option.find('.'));
  return std::ranges::any_of(kTaskKeys, [&](const Key& key) { return name == key.name; });
}

bool matches_task(const std::string& pattern, const std::string& task) {
  auto alternatives = expand_braces(pattern);
  return alternatives.ok() && std::ranges::any_of(*alternatives, [&](const std::string& each) {
           return ::fnmatch(each.c_str(), task.c_str(), 0) == 0;
         });
}

const std::string* secret_of(const Value& value) {
  if (value.kind() != Value::Kind::table) return nullptr;
  const Value* name = value.find("env");
  return name != nullptr && name->kind() == Value::Kind::string ? &name->as_string() : nullptr;
}

}  // namespace flow
