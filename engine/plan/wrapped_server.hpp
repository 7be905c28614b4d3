// Checks of a service whose server is started by the task's command.
#pragma once
#include <string>
#include <string_view>

#include "engine/plan/service_spec.hpp"

namespace flow {

/// What is wrong with the service, given whether its task has a command, as a clause of which the
/// task is the subject; "" if nothing is.
std::string wrapped_server_problem(const ServiceSpec& service, bool has_command);

/// Whether the text can be the path of a request: it begins with `/`, and has visible ASCII
/// characters only.
bool is_request_path(std::string_view text);

}  // namespace flow
