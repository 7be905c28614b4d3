// flow ui, flow report, flow export, flow import, flow trace. See engine/cli/verbs/verbs.hpp.
#pragma once
#include "engine/cli/display/common.hpp"

namespace flow::cli {

void add_ui(CLI::App& app, VerbContext& context);
void add_report(CLI::App& app, VerbContext& context);
void add_export(CLI::App& app, VerbContext& context);
void add_import(CLI::App& app, VerbContext& context);
void add_trace(CLI::App& app, VerbContext& context);

}  // namespace flow::cli
