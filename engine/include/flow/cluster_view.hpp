// A view of a state at one moment: its runs, the tasks of one of them, its workers with their GPUs,
// its services, and what waits for what. `flow top` shows it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

/// Tasks of one run that wait for the same thing.
struct WaitingTasks {
  std::string reason;  ///< as TaskInfo::waits_for
  uint32_t tasks = 0;  ///< how many wait for it
  std::string first;   ///< name of the first of them, with its tag
};
/// Maximum number of reasons in a view. The tasks of all others are in the last one, whose reason
/// is "".
constexpr size_t kWaitReasonsMax = 1000;

struct ClusterView {
  std::string state;           ///< the state's directory, or the address of the head that was asked
  int64_t at_ms = 0;           ///< when it was read, since the Unix epoch
  bool has_writer = false;     ///< a process writes the state; otherwise no run proceeds
  std::vector<RunInfo> runs;   ///< without tasks, oldest first
  std::optional<RunInfo> run;  ///< the selected run, with tasks; nothing if there is no run
  std::vector<WaitingTasks> waiting;  ///< of the selected run, those with most tasks first
  std::vector<NodeInfo> workers;      ///< the engine's own machine is first; empty without a writer
  std::vector<ServiceInfo> services;  ///< of all active runs, with their traffic
  std::string json() const;           ///< the object described in docs/reference-cli.md
};

/// Reads a state next to its writer, or asks a head. Never becomes the writer. One thread at a
/// time.
class ClusterViewer {
 public:
  /// Uses only `state`, `working_directory`, `head` and `secret_file` of `options`. Throws Failed
  /// if the head cannot be reached.
  explicit ClusterViewer(const EngineOptions& options);
  ~ClusterViewer();
  ClusterViewer(const ClusterViewer&) = delete;
  ClusterViewer& operator=(const ClusterViewer&) = delete;
  /// `run` selects as Reader::show; "": the newest run that has not ended, else the newest. A state
  /// without a run is an empty view. From a head, `runs` are the selected run and those that have
  /// tasks on its workers or services. Throws Failed: (user) if the run is unknown.
  ClusterView view(const std::string& run = "");

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flow
