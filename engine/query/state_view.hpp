// A ClusterView of a state, from one replay of its journal.
#pragma once
#include <string>
#include <vector>

#include "flow/cluster_view.hpp"

namespace flow {

/// As ClusterViewer::view, of a state on this machine. Throws Failed.
ClusterView view_state(const EngineOptions& options, const std::string& run);
/// The tasks of the run that wait, by their reasons.
std::vector<WaitingTasks> waiting_tasks(const RunInfo& run);

}  // namespace flow
