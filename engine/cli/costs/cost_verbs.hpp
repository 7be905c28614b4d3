// flow cost, flow advise. See engine/cli/verbs/verbs.hpp.
#pragma once
#include "engine/cli/display/common.hpp"

namespace flow::cli {

void add_cost(CLI::App& app, VerbContext& context);
void add_advise(CLI::App& app, VerbContext& context);

}  // namespace flow::cli
