// The configuration of a verb: for each option the command line, the environment, and flow.toml.
#pragma once
#include <string>
#include <vector>

#include "engine/cli/display/run_options.hpp"

namespace flow::cli {

void add_profile_option(CLI::App* verb, VerbContext& context);  // --profile

/// Reads the files for a script in `folder` into context.config, with the profile of the command
/// line, else of FLOW_PROFILE, else `profile`. Errors end the process with exit code 2.
std::vector<ConfigValue> read_config(VerbContext& context, const std::string& folder,
                                     const std::string& profile = "");
/// Sets the state, or the head and its secret, unless the command line names them. Without
/// `may_have_head`, only the state.
void choose_state(VerbContext& context, const std::vector<ConfigValue>& values, bool may_have_head);
/// Sets the options of a run that the command line does not set. A run that is continued with its
/// own code keeps the budget that it has.
void choose_run_options(VerbContext& context, RunArguments& arguments,
                        const std::vector<ConfigValue>& values, bool keeps_budget = false);

/// For verbs without a script: the state or the head, by the files of the working directory.
void configure_verb(VerbContext& context, bool may_have_head);
/// For a script that is named as FILE|DIR|-.
void configure_run(VerbContext& context, RunArguments& arguments, const std::string& file);
/// For a run that is continued. It keeps its configuration; with `new_code` the files are read
/// again.
void configure_again(VerbContext& context, RunArguments& arguments, const RunInfo& run,
                     bool new_code);

/// Prints each option of `context.explained` and of the script's tasks with its origin.
void print_config(const VerbContext& context, const std::vector<ConfigValue>& tasks);

}  // namespace flow::cli
