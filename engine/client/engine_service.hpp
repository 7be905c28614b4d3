// The interface through which the server of clients calls the engine in its process. engine/api
// implements it, so engine/client does not depend on engine/api.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/cluster/transfer/blob_reader.hpp"
#include "engine/runs/run_handle.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/submission/prepare.hpp"

namespace flow {

/// How a run that has ended or was interrupted continues:
/// - `resume`: with the code that the run was started with. Failed tasks of a failed run get new
///   attempts; a run that succeeded only returns its result.
/// - `new_code`: as `resume`, with the code that is on disk now.
/// - `retry`: as `resume`, and ignored failures of a run that succeeded get new attempts as well.
enum class Resumption : uint8_t { resume, new_code, retry };

/// Thread-safe: the server has a thread per connection. A function that returns no Result throws
/// Failed on an error, for example for a selector that names no run.
class EngineService : public detail::EngineImpl {
 public:
  using EngineImpl::show;
  /// Like EngineImpl::run(), with the working directory and the environment of the submission.
  virtual std::shared_ptr<detail::RunHandle> run_for(const Submission& submission) = 0;
  /// Like EngineImpl::resume() or retry(), with the working directory and the environment of the
  /// submission; its script and parameters are not used. `selector`: a run's id, a unique prefix
  /// of it, a run's name, or "last". `task`: the task to run again; "" for the whole run.
  virtual std::shared_ptr<detail::RunHandle> resume_for(const std::string& selector,
                                                        const std::string& task, Resumption how,
                                                        const Submission& submission) = 0;
  /// Like EngineImpl::serve(), or rollback() of the name `selector`, with the environment of the
  /// submission.
  virtual std::shared_ptr<detail::RunHandle> serve_for(const std::string& selector, bool rolls_back,
                                                       const Submission& submission) = 0;
  /// As EngineImpl's, for `by`: see requester.hpp.
  virtual void cancel_for(const std::string& selector, const std::string& by) = 0;
  virtual std::vector<RunInfo> stop_for(const std::string& selector, int64_t within_ms,
                                        const std::string& by) = 0;
  virtual void signal_for(const std::string& selector, const std::string& name,
                          const std::string& json, const std::string& by) = 0;
  /// Like EngineImpl::plan().
  virtual PlanInfo plan_for(const Submission& submission) = 0;
  /// The number of the run's tasks by status.
  virtual Counts counts(const RunId& run) = 0;
  /// The same for each task; empty if the run has ended.
  virtual std::vector<CountedTask> counts_by_task(const RunId& run) = 0;
  /// `tasks`: with the list of tasks.
  virtual RunInfo show(const std::string& selector, bool tasks) = 0;
  /// Returns the result of a run or a part of it, like EngineImpl::value(). `part`: a path as
  /// "train.loss"; "": all.
  virtual Value value(const std::string& selector, const std::string& part) const = 0;
  /// Returns the folder of each file of the result below the target of get(); see
  /// Reader::get_folders().
  virtual std::vector<std::string> get_folders(const std::string& selector) const = 0;
  /// Opens a blob for reading. If the state does not hold it, opens the file at `origin`, the place
  /// of a large input that is read in place; "" if there is no such place.
  virtual Result<cluster::BlobReader> open_blob(const Digest& digest,
                                                const std::string& origin) const = 0;
  /// The loop lives as long as this object.
  virtual EngineLoop& engine_loop() = 0;
};

}  // namespace flow
