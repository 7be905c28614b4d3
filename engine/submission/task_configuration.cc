#include "engine/submission/task_configuration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/core/core.hpp"
#include "engine/plan/task_options.hpp"

namespace flow {

namespace {

constexpr std::string_view kEnvPrefix = "env.";

/// Whether the script sets the option of the task.
bool is_written(const TaskDef& def, const std::string& option) {
  if (!option.starts_with(kEnvPrefix))
    return std::ranges::binary_search(def.written_options, option);
  return std::ranges::binary_search(def.written_options, "env") &&
         find_variable(def, option.substr(kEnvPrefix.size())) != nullptr;
}

bool has_command(const TaskDef& def) {
  return def.kind == TaskKind::shell || !def.shell.command.empty();
}

/// The settings that apply to a task as the script has it, each option once.
std::vector<const ConfigSetting*> settings_for(const Configuration& configuration,
                                               const TaskDef& def) {
  std::vector<const ConfigSetting*> chosen;
  std::set<std::string> taken;
  auto take = [&](const ConfigSetting& setting) {
    if (is_command_option(setting.option) && !has_command(def)) return;
    if (setting.option == "queue" && def.kind == TaskKind::service) return;  // it has requests
    if (taken.insert(setting.option).second) chosen.push_back(&setting);
  };
  for (const ConfigSetting& setting : configuration.settings)
    if (setting.table == ConfigTable::tasks && matches_task(setting.pattern, def.name))
      take(setting);
  for (const ConfigSetting& setting : configuration.settings) {
    bool is_default = setting.table == ConfigTable::defaults && is_task_option(setting.option);
    bool is_elsewhere = setting.option == "where" && core::is_head_only(def);  // on this machine
    if (is_default && !is_elsewhere && !is_written(def, setting.option)) take(setting);
  }
  return chosen;
}

Status check_task_option(const ConfigSetting& setting) {
  if (setting.table != ConfigTable::tasks && setting.table != ConfigTable::defaults) return {};
  if (!is_task_option(setting.option)) return {};
  TaskDef scratch;
  Status set = set_task_option(scratch, setting.option, setting.value);
  if (set.ok()) return {};
  return user_error(
      fmt::format("{}{} {}", setting.location(), setting.header, set.error().message));
}

/// Names of the options to show.
std::vector<std::string> options_of(const TaskDef& def) {
  std::vector<std::string> options = task_option_names();
  if (!has_command(def)) std::erase_if(options, is_command_option);
  for (const EnvEntry& entry : def.env) options.push_back(std::string(kEnvPrefix) + entry.name);
  return options;
}

std::string script_origin(const TaskDef& def) {
  return fmt::format("script {}:{}", def.file, def.line);
}

void set_options(TaskDef& def, const std::vector<const ConfigSetting*>& settings) {
  for (const ConfigSetting* setting : settings) {
    Status set = set_task_option(def, setting->option, setting->value);
    FLOW_CHECK(set.ok());  // read_task_configuration has checked it
  }
}

ConfigValue value_of(const ConfigSetting& setting) {
  ConfigValue value;
  value.table = table_name(setting.table);
  value.option = setting.option;
  value.value = setting.value;
  value.origin = setting.origin();
  value.file = setting.file;
  return value;
}

}  // namespace

Result<Configuration> read_task_configuration(const ConfigOptions& config) {
  auto configuration = read_configuration(config);
  FLOW_TRY(configuration);
  for (const ConfigSetting& setting : configuration->settings) FLOW_TRY(check_task_option(setting));
  for (const ConfigSetting& setting : configuration->others) FLOW_TRY(check_task_option(setting));
  return configuration;
}

bool configure_tasks(const Configuration& configuration, Plan& plan) {
  bool is_changed = false;
  for (TaskDef& def : plan.defs) {
    std::vector<const ConfigSetting*> settings = settings_for(configuration, def);
    set_options(def, settings);
    is_changed |= !settings.empty();
  }
  std::set<std::string> warned;
  for (const ConfigSetting& setting : configuration.settings) {
    if (setting.table != ConfigTable::tasks || !warned.insert(setting.header).second) continue;
    bool is_used = std::ranges::any_of(
        plan.defs, [&](const TaskDef& def) { return matches_task(setting.pattern, def.name); });
    if (is_used) continue;
    plan.warnings.push_back(fmt::format("{}:{}: {} matches no task of the pipeline `{}`",
                                        setting.file, setting.header_line, setting.header,
                                        plan.pipeline));
    is_changed = true;
  }
  return is_changed;
}

std::vector<ConfigValue> explain_tasks(const Configuration& configuration, const Plan& plan) {
  std::vector<ConfigValue> values;
  std::set<std::string> seen;
  for (const TaskDef& def : plan.defs) {
    std::vector<const ConfigSetting*> settings = settings_for(configuration, def);
    TaskDef configured = def;
    set_options(configured, settings);
    for (const std::string& option : options_of(configured)) {
      auto setting = std::ranges::find(settings, option, &ConfigSetting::option);
      ConfigValue value;
      if (setting != settings.end()) value = value_of(**setting);
      value.table = table_name(ConfigTable::tasks);
      value.task = def.name;
      value.option = option;
      if (setting == settings.end()) {
        value.value = task_option(configured, option);
        value.origin = is_written(def, option) ? script_origin(def) : "default";
      }
      // Calls with options of their own have definitions of their own.
      std::string row = value.task + '\0' + option + '\0' + to_json(value.value) + value.origin;
      if (seen.insert(std::move(row)).second) values.push_back(std::move(value));
    }
  }
  return values;
}

std::vector<ConfigValue> run_values(const Configuration& configuration) {
  std::vector<ConfigValue> values;
  std::set<std::pair<ConfigTable, std::string>> taken;
  for (const ConfigSetting& setting : configuration.settings) {
    bool is_of_task = setting.table == ConfigTable::tasks ||
                      (setting.table == ConfigTable::defaults && is_task_option(setting.option));
    if (is_of_task || !taken.emplace(setting.table, setting.option).second) continue;
    values.push_back(value_of(setting));
  }
  return values;
}

Result<Value> kept_config(const ConfigOptions& config) {
  if (config.files.empty()) return Value();
  auto configuration = read_task_configuration(config);
  FLOW_TRY(configuration);
  std::vector<Value> values;
  for (const ConfigValue& each : run_values(*configuration)) {
    if (each.table == table_name(ConfigTable::head)) continue;
    values.push_back(Value::map({{"table", Value(each.table)},
                                 {"option", Value(each.option)},
                                 {"value", each.value},
                                 {"origin", Value(each.origin)},
                                 {"file", Value(each.file)},
                                 {"has_effect", Value(each.has_effect)}}));
  }
  return Value::map(
      {{"profile", Value(config.profile)}, {"values", Value::list(std::move(values))}});
}

namespace {

std::string text_field(const Value& of, std::string_view name) {
  const Value* text = of.find(name);
  return text != nullptr && text->kind() == Value::Kind::string ? text->as_string() : "";
}

}  // namespace

std::vector<ConfigValue> values_of_kept(const Value& kept, std::string& profile) {
  profile = text_field(kept, "profile");
  std::vector<ConfigValue> values;
  const Value* list = kept.find("values");
  if (list == nullptr || list->kind() != Value::Kind::table) return values;
  for (const Value& each : list->as_table().list) {
    ConfigValue& value = values.emplace_back();
    value.table = text_field(each, "table");
    value.option = text_field(each, "option");
    value.origin = text_field(each, "origin");
    value.file = text_field(each, "file");
    if (const Value* given = each.find("value")) value.value = *given;
    if (const Value* effect = each.find("has_effect")) value.has_effect = effect->truthy();
  }
  return values;
}

}  // namespace flow
