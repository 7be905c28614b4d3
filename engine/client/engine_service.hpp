// Interface of the engine to the server in a state's writer. engine/api implements it, so
// engine/client does not depend on engine/api.
#pragma once
#include <memory>
#include <string>

#include "engine/cluster/transfer/blob_reader.hpp"
#include "engine/runs/run_handle.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/submission/prepare.hpp"

namespace flow {

/// Thread-safe: each connection of the server calls it from its own thread. Throws Failed.
class EngineService : public detail::EngineImpl {
 public:
  using EngineImpl::show;
  /// As run(), with the working directory and the environment of the submission.
  virtual std::shared_ptr<detail::RunHandle> run_for(const Submission& submission) = 0;
  /// As resume(); as retry() if `task` is not "".
  virtual std::shared_ptr<detail::RunHandle> resume_for(const std::string& selector,
                                                        const std::string& task, bool new_code,
                                                        const Submission& from) = 0;
  virtual PlanInfo plan_for(const Submission& submission) = 0;
  virtual Counts counts(const RunId& run) = 0;
  virtual RunInfo show(const std::string& selector, bool tasks) = 0;
  /// As Reader::value.
  virtual Value value(const std::string& selector, const std::string& part) const = 0;
  /// A blob of this state; the file at `origin` if that is not "".
  virtual Result<cluster::BlobReader> open_blob(const Digest& digest,
                                                const std::string& origin) const = 0;
  virtual EngineLoop& engine_loop() = 0;
};

}  // namespace flow
