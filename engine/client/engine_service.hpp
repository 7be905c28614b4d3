#pragma once
#include <memory>
#include <string>

#include "engine/cluster/transfer/blob_reader.hpp"
#include "engine/runs/run_handle.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/submission/prepare.hpp"

namespace flow {

/// What the server of a state's writer asks of the engine for its clients.
class EngineService : public detail::EngineImpl {
 public:
  using EngineImpl::show;
  /// As run(); the working directory and the environment are those of the request.
  virtual std::shared_ptr<detail::RunHandle> run_for(const Submission& submission) = 0;
  /// As resume(), or as retry() if `task` is given.
  virtual std::shared_ptr<detail::RunHandle> resume_for(const std::string& selector,
                                                        const std::string& task, bool new_code,
                                                        const Submission& from) = 0;
  virtual PlanInfo plan_for(const Submission& submission) = 0;
  virtual Counts counts(const RunId& run) = 0;
  virtual RunInfo show(const std::string& selector, bool tasks) = 0;
  /// As Reader::value.
  virtual Value value(const std::string& selector, const std::string& part) const = 0;
  /// A blob of this state, or the file at `origin` that is read in place.
  virtual Result<cluster::BlobReader> open_blob(const Digest& digest,
                                                const std::string& origin) const = 0;
  virtual EngineLoop& engine_loop() = 0;
};

}  // namespace flow
