// A submission: everything from which the engine creates a run.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/environment_variables.hpp"
#include "engine/core/types.hpp"
#include "engine/plan/plan.hpp"
#include "engine/plan/resource_quantities.hpp"
#include "engine/runs/run_listener.hpp"
#include "engine/store/rows.hpp"
#include "flow/flow.hpp"

namespace flow {

using core::RunId;

/// Data of a run that the core's state does not hold, while this process executes it.
struct RunContext {
  RunRecord record;
  std::string request;                        // id of the request; "" if it is never repeated
  std::shared_ptr<const std::string> bundle;  // encoded
  std::shared_ptr<const EnvironmentVariables> environment =
      std::make_shared<const EnvironmentVariables>();
  int64_t grace_ms = 10'000;
  int64_t serve_for_ms = -1;
  int64_t serve_until_ms = -1;  // the end of that time, if it began in an earlier process
  int64_t front_lease_ms = RunOptions().front_lease_ms;
  std::optional<core::BudgetTerms> budget;           // a new one that the request gives the run,
  bool is_budget_asked = false;                      // and not only its configuration
  bool publishes_logs = false;                       // the listener gets what tasks write
  std::string user, by{};                            // as Submission's
  core::ActionKind action = core::ActionKind::none;  // what made the run, if not a plain submission
  bool is_detached = false;    // the next writer resumes it when this one has died,
  bool is_of_head = false;     // if that is a head
  bool is_unattended = false;  // it was resumed by the engine itself, and has no listener
  std::string notify{};        // encoded NotifySettings; "": no notifications
  std::shared_ptr<RunListener> listener;
};

using OnRunEnded = std::function<void(const core::RunId& run,
                                      std::shared_ptr<const EnvironmentVariables> environment)>;

/// The expected capacity of each node that is requested from a batch scheduler.
struct RequestedNodes {
  ResourceQuantities custom_resources;
  std::optional<int32_t> gpus;
};

/// A graph with its code and parameters, built by a client on another machine; files by content.
struct PrebuiltGraph {
  std::string machine;  // the machine of its paths
  std::string plan, bundle;
  std::vector<std::string> printed;  // lines that the script printed
};

struct Inputs;  // run_inputs.hpp

/// The name of a script that `flow run -` reads from the standard input.
constexpr std::string_view kStdinScript = "stdin";

/// A request to run a pipeline, from this process or from a client.
struct Submission {
  std::string script;             // absolute path of a file, or of a folder with pipeline.lua
  std::string working_directory;  // absolute
  Value params;                   // table, or nil
  RunOptions options;
  std::shared_ptr<const EnvironmentVariables> environment;
  std::shared_ptr<const Bundle> pinned;  // build from this code
  /// The inputs of the run that is resumed with new code: URLs are not asked again.
  std::shared_ptr<const Inputs> resumed_inputs;
  /// The graph, if a client on another machine built it.
  std::shared_ptr<const PrebuiltGraph> built;
  std::string user{};          // who submits it: a name of the operating system; "" if unknown
  std::string by{};            // who asks, and where: see requester.hpp
  bool is_unattended = false;  // the engine itself resumes the run: nobody follows it
};

struct Prepared {
  RunContext context;
  std::shared_ptr<const Plan> plan;
  std::string plan_bytes;
  std::string inputs;  // encoded, of run_inputs.hpp; "" if there is nothing to keep
};

}  // namespace flow
