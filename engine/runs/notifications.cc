#include "engine/runs/notifications.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/remote_url.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

std::string text_of(const Value& from, std::string_view name) {
  const Value* field = from.find(name);
  return field != nullptr && field->kind() == Value::Kind::string ? field->as_string() : "";
}

/// The items of a list; none if it has another form.
const std::vector<Value>& items_of(const Value& from, std::string_view name) {
  static const std::vector<Value> none;
  const Value* field = from.find(name);
  bool is_table = field != nullptr && field->kind() == Value::Kind::table;
  return is_table ? field->as_table().list : none;
}

Value value_of(const NotifySettings& settings) {
  std::vector<Value> targets, statuses;
  for (const NotifyTarget& target : settings.targets)
    targets.push_back(Value::map({{"command", Value(target.is_command)},
                                  {"text", Value(target.text)},
                                  {"variable", Value(target.variable)},
                                  {"on_end", Value(target.is_on_end)}}));
  for (const std::string& status : settings.statuses) statuses.emplace_back(status);
  return Value::map({{"targets", Value::list(std::move(targets))},
                     {"secret", Value(settings.secret_variable)},
                     {"statuses", Value::list(std::move(statuses))},
                     {"directory", Value(settings.directory)},
                     {"on_end", Value(settings.on_end)}});
}

bool are_same(const NotifyTarget& one, const NotifyTarget& other) {
  return one.is_command == other.is_command && one.text == other.text &&
         one.variable == other.variable;
}

NotifySettings settings_of(const Value& from) {
  NotifySettings settings;
  if (from.kind() != Value::Kind::table) return settings;
  settings.on_end = text_of(from, "on_end");
  for (const Value& each : items_of(from, "targets")) {
    if (each.kind() != Value::Kind::table) continue;
    const Value* is_command = each.find(std::string_view("command"));
    NotifyTarget target;
    target.is_command = is_command != nullptr && is_command->truthy();
    target.text = text_of(each, "text");
    target.variable = text_of(each, "variable");
    // Rows of earlier builds do not say it.
    const Value* is_on_end = each.find(std::string_view("on_end"));
    target.is_on_end = is_on_end != nullptr ? is_on_end->truthy()
                                            : !settings.on_end.empty() &&
                                                  are_same(target, on_end_target(settings.on_end));
    bool is_named = !target.text.empty() || !target.variable.empty();
    if (is_named) settings.targets.push_back(std::move(target));
  }
  for (const Value& each : items_of(from, "statuses"))
    if (each.kind() == Value::Kind::string) settings.statuses.push_back(each.as_string());
  settings.secret_variable = text_of(from, "secret");
  settings.directory = text_of(from, "directory");
  return settings;
}

}  // namespace

NotifyTarget on_end_target(const std::string& on_end) {
  return {!is_remote_url(on_end), on_end, "", true};
}

void add_target(NotifySettings& settings, NotifyTarget target) {
  auto found = std::ranges::find_if(
      settings.targets, [&](const NotifyTarget& each) { return are_same(each, target); });
  if (found == settings.targets.end()) return settings.targets.push_back(std::move(target));
  found->is_on_end = found->is_on_end && target.is_on_end;
}

void replace_on_end(NotifySettings& settings, const std::string& on_end) {
  std::erase_if(settings.targets, [](const NotifyTarget& target) { return target.is_on_end; });
  settings.on_end = on_end;
  add_target(settings, on_end_target(on_end));
}

Notification notification_of_end(const core::RunId& run, const std::string& status,
                                 core::Time finished, const NotifySettings& settings) {
  Notification notification{run, fmt::format("{}-{:x}", run, finished), status, settings};
  bool is_wanted = settings.statuses.empty() ||
                   std::ranges::find(settings.statuses, status) != settings.statuses.end();
  if (!is_wanted) notification.to.targets.clear();
  return notification;
}

std::string encode_notify_settings(const NotifySettings& settings) {
  return encode_value(value_of(settings));
}

NotifySettings decode_notify_settings(std::string_view row) {
  auto value = decode_value(row);
  return value.ok() ? settings_of(*value) : NotifySettings();
}

std::string encode_notification(const Notification& notification) {
  return encode_value(Value::map({{"run", Value(notification.run)},
                                  {"delivery", Value(notification.delivery)},
                                  {"status", Value(notification.status)},
                                  {"to", value_of(notification.to)},
                                  {"failed_since_ms", Value(notification.failed_since_ms)}}));
}

Notification decode_notification(std::string_view row) {
  Notification notification;
  auto value = decode_value(row);
  if (!value.ok() || value->kind() != Value::Kind::table) return notification;
  notification.run = text_of(*value, "run");
  notification.delivery = text_of(*value, "delivery");
  notification.status = text_of(*value, "status");
  if (const Value* to = value->find(std::string_view("to"))) notification.to = settings_of(*to);
  const Value* since = value->find(std::string_view("failed_since_ms"));
  bool is_number = since != nullptr && since->kind() == Value::Kind::integer;
  if (is_number) notification.failed_since_ms = since->as_integer();
  return notification;
}

}  // namespace flow
