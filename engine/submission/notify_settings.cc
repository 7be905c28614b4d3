#include "engine/submission/notify_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/remote_url.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/task_configuration.hpp"

namespace flow {

namespace {

bool is_web_url(std::string_view text) { return is_remote_url(text) && !is_s3_url(text); }

bool has_variable(const Submission& submission, const std::string& name) {
  return std::ranges::any_of(*submission.environment, [&](const auto& each) {
    return each.first == name && !each.second.empty();
  });
}

constexpr const char* kOnEndOption = "--on-end";

Status check_url(const std::string& text, const std::string& origin) {
  if (!is_web_url(text))
    return user_error(
        fmt::format("{}: `{}` is not a URL of a webhook: it begins with http:// or https://",
                    origin, display_url(text)));
  auto url = parse_url(text);
  if (!url.ok()) return user_error(origin + ": " + url.error().message);
  return {};
}

Status check(const NotifyTarget& target, const std::string& origin, const Submission& from) {
  if (target.is_command) return {};
  if (target.variable.empty()) return check_url(target.text, origin);
  if (has_variable(from, target.variable)) return {};
  return user_error(
      fmt::format("{}: the variable {} is not set. It is the URL that gets the "
                  "notification: set it, or remove the option",
                  origin, target.variable));
}

/// Reads the options of [notify].
class NotifyReader {
 public:
  explicit NotifyReader(const Submission& submission) : submission_(submission) {}

  Result<NotifySettings> read() {
    const RunOptions& options = submission_.options;
    settings_.directory = submission_.working_directory;
    if (!options.on_end.empty()) {
      settings_.on_end = options.on_end;
      FLOW_TRY(add(on_end_target(options.on_end), kOnEndOption));
    }
    if (!options.config.files.empty()) {
      auto configuration = read_configuration(options.config);
      FLOW_TRY(configuration);
      for (const ConfigValue& value : run_values(*configuration))
        if (value.table == table_name(ConfigTable::notify)) FLOW_TRY(take(value));
    }
    // Without targets, `on` and `secret` are for those of later requests.
    bool has_some = !settings_.targets.empty() || !settings_.statuses.empty() ||
                    !settings_.secret_variable.empty();
    if (!has_some) return NotifySettings();
    return std::move(settings_);
  }

 private:
  Status add(NotifyTarget target, const std::string& origin) {
    FLOW_TRY(check(target, origin, submission_));
    add_target(settings_, std::move(target));
    return {};
  }

  // The command line replaces `on_end` of the files and adds to `webhook` and `command`.
  Status take(const ConfigValue& value) {
    const std::string at = value.origin + " `" + value.option + "`";
    if (value.option == "on_end" && submission_.options.on_end.empty())
      return add(on_end_target(value.value.as_string()), at);
    if (value.option == "command") return add({true, value.value.as_string(), ""}, at);
    const std::string* variable = secret_of(value.value);
    if (value.option == "webhook")
      return add(variable != nullptr ? NotifyTarget{false, "", *variable}
                                     : NotifyTarget{false, value.value.as_string(), ""},
                 at);
    if (value.option == "secret") return take_secret(*variable, at);
    if (value.option == "on")
      for (const Value& status : value.value.as_table().list)
        settings_.statuses.push_back(status.as_string());
    return {};
  }

  Status take_secret(const std::string& variable, const std::string& at) {
    if (!has_variable(submission_, variable))
      return user_error(
          fmt::format("{}: the variable {} is not set. Webhooks are signed with its "
                      "value: set it, or remove the option",
                      at, variable));
    settings_.secret_variable = variable;
    return {};
  }

  const Submission& submission_;
  NotifySettings settings_;
};

}  // namespace

Result<NotifySettings> notify_settings(const Submission& submission) {
  return NotifyReader(submission).read();
}

Status check_on_end(const std::string& on_end) {
  if (on_end.empty() || on_end_target(on_end).is_command) return {};
  return check_url(on_end, kOnEndOption);
}

Result<std::string> kept_notify_row(const Store& store, const RunRecord& run,
                                    const std::string& on_end) {
  auto row = store.get(Family::kv, notify_key(run.id));
  FLOW_TRY(row);
  std::string kept = std::move(*row).value_or("");
  if (on_end.empty()) return kept;
  NotifySettings settings = decode_notify_settings(kept);
  replace_on_end(settings, on_end);
  if (settings.directory.empty()) settings.directory = run.directory;
  return encode_notify_settings(settings);
}

}  // namespace flow
