// Notifications of the end of a run, and the rows that hold them: one of the run's settings,
// and one per end, which is in the batch of the event that ends the run.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/types.hpp"

namespace flow {

/// A command, or a webhook: an http or https URL that gets a POST.
struct NotifyTarget {
  bool is_command = false;
  std::string text;        // the command or the URL; "" if `variable` has it
  std::string variable;    // of the environment, with a URL that is a secret; "": none
  bool is_on_end = false;  // `on_end` of a request or of [notify], which a later request replaces
  bool operator==(const NotifyTarget&) const = default;
};

struct NotifySettings {
  std::vector<NotifyTarget> targets;
  std::string secret_variable;        // of the environment, with the key of signatures; "": none
  std::vector<std::string> statuses;  // only these ends are notified; empty: all
  std::string directory;              // where commands run
  std::string on_end;                 // RunOptions::on_end, one of the targets; "": none
  bool operator==(const NotifySettings&) const = default;
};

/// The end of a run, and the targets that it is still to be sent to.
struct Notification {
  core::RunId run;
  std::string delivery;         // an id that is the same each time it is sent
  std::string status;           // of the run at its end
  NotifySettings to;            // without the targets that were reached, or given up
  int64_t failed_since_ms = 0;  // of the first failure, since the Unix epoch; 0: none yet
  bool is_done() const { return to.targets.empty(); }
  bool operator==(const Notification&) const = default;
};

/// What `on_end` names: a webhook if it is a URL, else a command.
NotifyTarget on_end_target(const std::string& on_end);
/// Adds the target unless it is one already. One that [notify] names as well is not replaced.
void add_target(NotifySettings& settings, NotifyTarget target);
/// The request of a run that is continued, or served again, has this `on_end`.
void replace_on_end(NotifySettings& settings, const std::string& on_end);

/// The notification of this end; done if it has no targets.
Notification notification_of_end(const core::RunId& run, const std::string& status,
                                 core::Time finished, const NotifySettings& settings);

std::string encode_notify_settings(const NotifySettings& settings);
std::string encode_notification(const Notification& notification);
/// What a row lacks, or has in another form, is empty.
NotifySettings decode_notify_settings(std::string_view row);
Notification decode_notification(std::string_view row);

}  // namespace flow
