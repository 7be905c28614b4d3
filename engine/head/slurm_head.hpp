// The engine as the head of workers on Slurm nodes.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "engine/head/slurm_autoscaler.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "flow/flow.hpp"

namespace flow {

/// The runs of the engine that a SlurmHead serves. Called on the autoscaler's thread.
class RunEngine {
 public:
  virtual ~RunEngine() = default;
  /// Sends a warning to each run that is watched.
  virtual void warn_all(const std::string& text) = 0;
  /// Interrupts every run that is watched. `why` is reported as its error.
  virtual void interrupt_runs(const Error& why) = 0;
};

/// The address at which a head with these options listens, and a second choice if that fails; "":
/// none. A restarted head listens at its former address, where its workers reconnect.
Result<std::pair<std::string, std::string>> address_to_listen_at(const EngineOptions& options,
                                                                 const std::string& state_dir);

/// The request that `--on slurm` with these options sends to Slurm.
Result<SlurmRequest> slurm_request_of(const EngineOptions& options);

class SlurmHead {
 public:
  /// Asks Slurm for nodes. `listens_at`: where the head listens. `engine_loop` and `engine`
  /// outlive it.
  static Result<std::unique_ptr<SlurmHead>> start(const EngineOptions& options,
                                                  const std::string& state_dir,
                                                  const std::string& listens_at,
                                                  EngineLoop& engine_loop, RunEngine& engine);
  /// Releases the nodes and declares their workers lost, so that the next engine does not wait for
  /// them.
  ~SlurmHead();

 private:
  SlurmHead(const SlurmOptions& options, EngineLoop& engine_loop, RunEngine& engine)
      : options_(options), engine_loop_(engine_loop), engine_(engine) {}
  slurm::ClusterView view_of_nodes();
  void warn_if_nothing_fits(bool nothing_runs);

  const SlurmOptions options_;
  EngineLoop& engine_loop_;
  RunEngine& engine_;
  core::WorkerInfo like_;  // expected capacity of a Slurm node
  // Since when nodes are idle although work is ready; 0: not so, -1: reported.
  int64_t nothing_fits_ms_ = 0;
  std::unique_ptr<SlurmAutoscaler> autoscaler_;
};

}  // namespace flow
