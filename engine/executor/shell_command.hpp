// The command of an attempt: filled in, started, and followed to its end.
#pragma once
#include <poll.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/executor/attempt.hpp"
#include "engine/executor/command_environment.hpp"
#include "engine/executor/processes.hpp"

namespace flow {

/// Splits a stream into log lines and keeps the parts that the result and an error need.
class CommandOutput {
 public:
  CommandOutput(Attempt& attempt, uint32_t stream) : attempt_(attempt), stream_(stream) {}
  void add(std::string_view bytes);
  /// Logs a last line without an end.
  void flush();
  /// The last lines.
  std::string tail() const;
  /// The start of the output, as the result holds it.
  std::string kept() const;

 private:
  void flush_begun();
  void log(std::string_view text, bool ends_line = true);
  void keep_tail(std::string_view line);

  Attempt& attempt_;
  uint32_t stream_;
  std::string kept_, partial_;
  bool is_cut_ = false;
  std::deque<std::string> tail_;
};

/// The outcome of a command, and the processes that it left behind.
struct CommandEnd {
  int status = 0;                     // of its first process, as waitpid gives it
  std::vector<Descendant> leftovers;  // processes that were killed afterwards
  bool was_stopped = false;           // processes were left, and the attempt was asked to stop
  int64_t peak_memory = -1;           // of the largest of its processes, in bytes; -1: unknown
};

/// A command's first process, its output, and the processes that outlive it.
class RunningCommand {
 public:
  RunningCommand(WorkerLink& link, ChildProcess& child, CommandOutput& out, CommandOutput& err)
      : link_(link), child_(child), streams_{{child.out, &out}, {child.err, &err}} {}

  /// Reads output until the first process has ended, something happens to one of `others`, or the
  /// time is over. Returns true if the process has ended; -1: no limit.
  bool wait(std::vector<pollfd>& others, int timeout_ms);
  /// Waits for the first process, then at most `linger_ms` for the others, which may still write
  /// outputs, and kills the rest. Does not wait once the attempt is asked to stop.
  CommandEnd follow(const std::string& dir, int64_t linger_ms);

 private:
  struct Stream {
    int descriptor;
    CommandOutput* output;
    bool is_open = true;
  };
  bool poll_once(int pidfd, std::vector<pollfd>& others, int timeout_ms);
  void finish();

  WorkerLink& link_;
  ChildProcess& child_;
  Stream streams_[2];
};

/// A command that is ready to run, and the location of its outputs.
struct FilledCommand {
  ShellSpec spec;
  std::vector<OutputPath> outputs;
  std::string text;
  int64_t linger_ms = 0;
  std::string again;  // for errors: the folder and the command
};

/// Stages the inputs and fills the placeholders; a failure is reported. `port` is the value of
/// `{port}`; 0: the command has none.
std::optional<FilledCommand> fill(Attempt& attempt, const Value& args, uint16_t port);

/// Starts the command in its environment. `gang` is null for an attempt with one rank.
Result<ChildProcess> start(Attempt& attempt, const SlotFile& slot, const FilledCommand& command,
                           const OpenEnvironment& environment, AttemptContainer& container,
                           const Gang* gang);
/// The status that the shell would have ended with.
int shell_status(const ChildProcess& child, int status);

/// Creates an empty scratch folder. An existing one is a leftover of an attempt whose end was not
/// seen, and is removed.
Status make_command_scratch(const std::string& dir);
/// Logs a warning if something cannot be removed; `flow gc` tries again.
void remove_command_scratch(Attempt& attempt, const std::string& dir);

/// The failure of a command that did not succeed, or nothing. `status` is as shell_status() gives
/// it, `evidence` is what was printed.
std::optional<core::Failure> failure_of(const Attempt& attempt, const FilledCommand& command,
                                        const OpenEnvironment& environment,
                                        const AttemptContainer& container, int status,
                                        const std::string& evidence);
/// Transient errors are retried; permanent ones are reported at once.
core::Cause cause_of(const Error& error);
/// Reports that the environment could not be opened: what is missing on this machine may be there
/// on another one; a build that fails is the task's.
void fail_environment(Attempt& attempt, const Error& error, const std::string& again);

}  // namespace flow
