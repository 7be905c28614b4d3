// The notifications of a submitted run: `[notify]` of its configuration, and RunOptions::on_end of
// its submission or of a later request.
#pragma once
#include <string>

#include "engine/runs/notifications.hpp"
#include "engine/store/store.hpp"
#include "engine/submission/submission.hpp"

namespace flow {

/// Empty if there are none. Error (user) for a URL that is not valid, a status that is
/// not that of an end, and a variable that the submission's environment lacks.
Result<NotifySettings> notify_settings(const Submission& submission);
/// RunOptions::on_end of a request for a run that exists. Error (user) for a URL that is not valid.
Status check_on_end(const std::string& on_end);
/// The encoded NotifySettings that are kept with the run, with `on_end` in place of the run's own
/// if it is not "". The result is "" if there are none.
Result<std::string> kept_notify_row(const Store& store, const RunRecord& run,
                                    const std::string& on_end);

}  // namespace flow
