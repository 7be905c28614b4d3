// The environment of a command on this machine: what its options name, found or built.
#pragma once
#include <optional>
#include <string>

#include "engine/environments/containers.hpp"
#include "engine/environments/shell_setup.hpp"
#include "engine/executor/attempt.hpp"

namespace flow {

struct OpenEnvironment {
  CommandEnvironment options;
  ShellSetup setup;
  std::string text;                           // for the shell, before the command
  std::optional<ContainerRuntime> runtime{};  // of a container
  std::string image{};                        // that the runtime starts
};

/// Beside the scratch folder, as ShellSetup::stage_file.
std::string stage_file(const std::string& dir);

/// Finds or builds what the command's environment needs. An error of kind `user` is the task's,
/// another one a lack of this machine.
Result<OpenEnvironment> open_environment(Attempt& attempt);

/// A container of an attempt, from its start to its removal. Unless the options
/// name a container, it does nothing.
class AttemptContainer {
 public:
  AttemptContainer(Attempt& attempt, const OpenEnvironment& environment);
  ~AttemptContainer();
  AttemptContainer(const AttemptContainer&) = delete;
  AttemptContainer& operator=(const AttemptContainer&) = delete;

  /// Makes `what`, which runs a shell with `variables`, start this shell in the container.
  Status enter(const std::vector<std::string>& shell, SpawnRequest& what);
  /// Removes it after its command has ended with `status`, before the attempt is reported: the
  /// engine may end this process once it has received the report.
  void end(int status);
  /// After end(): whether the kernel ended the command for the container's memory limit.
  bool is_out_of_memory() const { return is_out_of_memory_; }

 private:
  /// The variables of the task, without those of the machine.
  std::map<std::string, std::string> own_variables(
      const std::map<std::string, std::string>& all) const;

  Attempt& attempt_;
  const OpenEnvironment& environment_;
  ContainerRecord record_;
  bool is_out_of_memory_ = false;
};

/// The failure if the shell ended before it came to the command, or nothing. `status` is as waitpid
/// gives it; `evidence` is what was printed.
std::optional<core::Failure> setup_failure(const Attempt& attempt,
                                           const OpenEnvironment& environment, int status,
                                           const std::string& again, const std::string& evidence);

}  // namespace flow
