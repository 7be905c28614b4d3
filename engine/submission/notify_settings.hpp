// The notifications of a submitted run: `[notify]` of its configuration, and RunOptions::on_end.
#pragma once
#include "engine/runs/notifications.hpp"
#include "engine/submission/submission.hpp"

namespace flow {

/// Without targets if there are none. Error (user) for a URL that is not valid, a status that is
/// not that of an end, and a variable that the submission's environment lacks.
Result<NotifySettings> notify_settings(const Submission& submission);

}  // namespace flow
