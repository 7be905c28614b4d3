// Whom a submitted run tells of its end: `[notify]` of its configuration, and RunOptions::on_end.
#pragma once
#include "engine/runs/notifications.hpp"
#include "engine/submission/submission.hpp"

namespace flow {

/// Without targets if it tells nobody. Error (user) for a URL that is not valid, a status that is
/// not that of an end, and a variable that the submission's environment lacks.
Result<NotifySettings> notify_settings(const Submission& submission);

}  // namespace flow
