// Lines of the engine's log about decisions of the engine loop. The lines of a record are made when
// it is applied and written once its commit is durable: a crash never undoes a logged decision.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/submission/submission.hpp"
#include "flow/log.hpp"
#include "flow/result.hpp"

namespace flow {

using EngineLogLines = std::vector<EngineLogLine>;

/// The lines of one record. Constructed before the record is applied, because a line may describe
/// what the record replaces. While the log is off it costs one atomic load per function.
class RecordLog {
 public:
  RecordLog(const core::State& state, const core::Record& record);
  /// After the record was applied: appends its lines. `commands`: those that the record made.
  void add_lines(const core::State& state, const core::Record& record,
                 std::span<const core::Command> commands, EngineLogLines& lines) const;

 private:
  bool was_known_ = false;        // a worker that joins: under this name, before
  bool was_draining_ = false;     // a worker that is lost
  uint32_t replicas_before_ = 0;  // of a service whose replicas scale
};

/// Writes the lines of a commit that is durable.
void write_lines(const EngineLogLines& lines);

/// No line shows the values that tasks of the plan take from the submitter's environment. Called
/// before the run's first line.
void hide_secrets(const Plan& plan, const EnvironmentVariables& environment);

/// A report that `admit` rejected: it is late, or a repeat. Other events leave no line. `reporter`:
/// the worker of another machine that sent it; "" for this machine's own.
void log_rejected_report(const core::State& state, const core::Event& event,
                         const std::string& reporter);
void add_snapshot_line(uint64_t sequence, uint64_t bytes, EngineLogLines& lines);
void log_collection(const Result<uint64_t>& freed_bytes, uint32_t keep);
/// The error that stops the engine: it could not commit, or could not read its state.
void log_engine_failure(const Error& error);
void log_engine_stop();

}  // namespace flow
