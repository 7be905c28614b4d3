// flow top: what runs, live on the terminal. See engine/cli/verbs/verbs.hpp.
#pragma once
#include "engine/cli/display/common.hpp"

namespace flow::cli {

void add_top(CLI::App& app, VerbContext& context);

}  // namespace flow::cli
